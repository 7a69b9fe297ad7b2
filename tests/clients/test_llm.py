"""llm: the command's models by configuration, and `llm --schema`."""
import json
import os
import subprocess
import sys

from clients_help import DESCRIBE, MAX_TOKENS, City, check_city


def run(server, folder, *args):
    with open(folder / "extra-openai-models.yaml", "w", encoding="utf-8") as f:
        f.write(f"- model_id: quern\n  model_name: {server.name}\n  api_base: {server.url}/v1\n"
                "  supports_schema: true\n")
    env = {**os.environ, "LLM_USER_PATH": str(folder)}
    out = subprocess.run([sys.executable, "-m", "llm", *args], env=env, capture_output=True, text=True, timeout=120,
                         stdin=subprocess.DEVNULL)
    assert out.returncode == 0, out.stderr
    return out.stdout


def test_schema(server, tmp_path):
    for more in ([], ["--no-stream"]):
        check_city(run(server, tmp_path, "-m", "quern", "--key", "none", "-o", "temperature", "0", "-o", "max_tokens",
                       str(MAX_TOKENS), "--schema", json.dumps(City.model_json_schema()), *more, DESCRIBE))
