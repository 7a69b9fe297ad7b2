# Steps that tools/quickstart and tools/test share; sourced by them (bash). Each step does nothing when its work is done
# already, says what it does, and ends the script with what failed and what to do about it.

PACKAGES_BUILD="gcc make pkg-config libc6-dev libjansson-dev libpcre2-dev libutf8proc-dev libedit-dev libpng-dev
    libjpeg62-turbo-dev libevent-dev libyaml-dev zlib1g-dev libcurl4-openssl-dev libsqlite3-dev libwebp-dev"
PACKAGES_FETCH="python3 python3-pip ca-certificates"
PACKAGES_TEST="libcmocka-dev python3-pytest python3-numpy clang-format valgrind cmake g++ zsh fish mandoc locales tmux"
PACKAGES_FUZZ="clang libclang-rt-dev"
PACKAGES_ARM64="gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
fail() { # WHAT FAILED, WHAT TO DO
    say "$1"
    printf '  %s\n' "$2" >&2
    exit 1
}

# quietly LOG COMMAND...: its output goes to LOG; on a terminal its last line is shown while it runs.
quietly() {
    local log=$1 rc line
    shift
    if [ -t 2 ]; then
        "$@" 2>&1 </dev/null | tee "$log" | while IFS= read -r line; do printf '\r\033[K  %.70s' "$line" >&2; done
        rc=${PIPESTATUS[0]}
        printf '\r\033[K' >&2
        return "$rc"
    fi
    "$@" >"$log" 2>&1 </dev/null
}

# need_packages PACKAGE...: installs those that are missing, through apt-get.
need_packages() {
    local missing=() root=() p log
    command -v dpkg-query >/dev/null || {
        say "this is no Debian: packages are not checked. What would be installed there: $*"
        return 0
    }
    for p in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || fail "these packages are missing, and there is no sudo: ${missing[*]}" \
            "As root: apt-get install ${missing[*]}"
        root=(sudo)
        sudo -v || fail "sudo was refused" "As root: apt-get install ${missing[*]}"
    fi
    say "installing packages: ${missing[*]}"
    log=$(mktemp)
    quietly "$log" "${root[@]}" apt-get update -q || {
        tail -n 5 "$log" >&2
        say "apt-get update failed; going on with the package lists that are here"
    }
    quietly "$log" "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
        "${missing[@]}" || {
        tail -n 15 "$log" >&2
        fail "apt-get install failed" "Run it by hand, mend what it says, start $0 again: apt-get install ${missing[*]}"
    }
    rm -f "$log"
}

# build [TARGET...]: make, quiet when all goes well.
build() {
    local log
    make -q "$@" >/dev/null 2>&1 && return 0
    say "building quern"
    log=$(mktemp)
    quietly "$log" make "$@" || {
        tail -n 30 "$log" >&2
        fail "make $* failed" "The lines above say where; V=1 make $* shows the commands."
    }
    rm -f "$log"
}

# need_mlx: Python's mlx and mlx_lm, for the tests of the device and the backend of that name, into the cache folder; QUERN_MLX
# names the Python that has them.
need_mlx() {
    local folder=${QUERN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quern}/mlx
    [ -z "${QUERN_MLX-}" ] || return 0
    "$folder/bin/python" -c 'import mlx_lm' 2>/dev/null || {
        need_packages python3-venv
        say "installing the Python packages mlx and mlx-lm into $folder"
        python3 -m venv "$folder" >&2 && "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
            'mlx[cpu]==0.32.4' mlx-lm==0.32.2 >&2 || {
            rm -rf "$folder"
            say "they could not be installed (no wheel for this machine, or no index): the tests that need them are left out"
            echo "0 passed, 0 failed, 1 skipped"
            return 1
        }
    }
    export QUERN_MLX=$folder/bin/python
}

# need_clients: the client libraries that call the server in tests/clients, into the cache folder; QUERN_CLIENTS names the Python
# that has them. llama-index and instructor refuse the openai package that the others need: they have an environment within
# theirs.
need_clients() {
    local folder=${QUERN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quern}/clients
    local pip="-m pip install --quiet --disable-pip-version-check --no-cache-dir"
    [ -z "${QUERN_CLIENTS-}" ] || return 0
    [ -e "$folder/complete-4" ] || {
        need_packages python3-venv
        say "installing Python packages of clients (openai, anthropic, litellm, langchain and others) into $folder"
        rm -rf "$folder"
        python3 -m venv "$folder" >&2 && "$folder/bin/python" $pip openai==3.57.0 litellm==1.110.2 langchain-openai==1.7.4 \
            'pydantic-ai-slim[openai]==2.68.0' openai-agents==0.24.0 haystack-ai==3.4.1 smolagents==1.26.0 anthropic==2.14.0 \
            langchain-anthropic==1.7.10 ollama==0.6.3 langchain-ollama==1.1.0 llm==0.36 llm-ollama==0.19.1 pytest numpy >&2 &&
            python3 -m venv "$folder/llama_index" >&2 && "$folder/llama_index/bin/python" $pip \
            llama-index-llms-openai-like==0.8.1 instructor==1.17.0 openai==2.54.0 >&2 && touch "$folder/complete-4" || {
            rm -rf "$folder"
            say "they could not be installed (no wheel for this machine, or no index): the tests that need them are left out"
            echo "0 passed, 0 failed, 1 skipped"
            return 1
        }
    }
    export QUERN_CLIENTS=$folder/bin/python
}

# need_tokenizers: the packages that define tokenizers, into the cache folder; QUERN_TOKENIZERS names the Python that has them.
need_tokenizers() {
    local folder=${QUERN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quern}/tokenizers
    [ -z "${QUERN_TOKENIZERS-}" ] || return 0
    [ -e "$folder/complete" ] || {
        need_packages python3-venv
        say "installing the Python packages tokenizers, sentencepiece, tiktoken and transformers into $folder"
        rm -rf "$folder"
        python3 -m venv "$folder" >&2 && "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
            tokenizers==0.23.3 sentencepiece==0.2.3 tiktoken==0.14.0 transformers protobuf >&2 && touch "$folder/complete" || {
            rm -rf "$folder"
            say "they could not be installed (no index): tokenizers are not compared"
            echo "0 passed, 0 failed, 1 skipped"
            return 1
        }
    }
    QUERN_TOKENIZERS=$folder/bin/python
}

# need_openapi: schemathesis and openapi-spec-validator, into the cache folder; QUERN_OPENAPI names the Python that has them.
need_openapi() {
    local folder=${QUERN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quern}/openapi
    [ -z "${QUERN_OPENAPI-}" ] || return 0
    [ -e "$folder/complete" ] || {
        need_packages python3-venv
        say "installing the Python packages schemathesis and openapi-spec-validator into $folder"
        rm -rf "$folder"
        python3 -m venv "$folder" >&2 && "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
            schemathesis==4.32.5 openapi-spec-validator==0.9.0 pytest numpy >&2 && touch "$folder/complete" || {
            rm -rf "$folder"
            say "they could not be installed (no wheel for this machine, or no index): the tests that need them are left out"
            echo "0 passed, 0 failed, 1 skipped"
            return 1
        }
    }
    export QUERN_OPENAPI=$folder/bin/python
}

# need_llama_server: llama.cpp's own server tests with the chat templates that they name, out of the source of
# llama-cpp-python, and the packages that they import, into the cache folder; QUERN_LLAMA_SERVER names it.
need_llama_server() {
    local folder=${QUERN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quern}/llama-server name=llama_cpp_python-0.3.36
    local pip="-m pip --quiet --disable-pip-version-check --no-cache-dir"
    [ -z "${QUERN_LLAMA_SERVER-}" ] || return 0
    [ -e "$folder/complete" ] || {
        need_packages python3-venv
        say "fetching llama.cpp's server tests (the source of llama-cpp-python, 75 MB) into $folder"
        rm -rf "$folder"
        mkdir -p "$folder/llama.cpp" && python3 -m venv "$folder" >&2 &&
            "$folder/bin/python" $pip install 'pytest~=8.3.3' 'filelock~=3.16' 'openai~=2.14.0' 'requests~=2.32.3' 'wget~=3.2' \
                aiohttp prometheus-client numpy gguf==0.19.0 >&2 &&
            "$folder/bin/python" $pip download --no-deps --no-binary :all: -d "$folder" llama-cpp-python==0.3.36 >&2 &&
            tar xzf "$folder/$name.tar.gz" -C "$folder/llama.cpp" --strip-components=3 "$name/vendor/llama.cpp/tools/server/tests" \
                "$name/vendor/llama.cpp/models/templates" >&2 && touch "$folder/complete" || {
            rm -rf "$folder"
            say "they could not be fetched (no index): llama.cpp's tests are left out"
            echo "0 passed, 0 failed, 1 skipped"
            return 1
        }
    }
    export QUERN_LLAMA_SERVER=$folder
}

# need_jsonschema: the validator jsonschema with its formats, into the cache folder; QUERN_JSONSCHEMA names the Python that has it.
need_jsonschema() {
    local folder=${QUERN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quern}/jsonschema
    [ -z "${QUERN_JSONSCHEMA-}" ] || return 0
    [ -e "$folder/complete" ] || {
        need_packages python3-venv
        say "installing the Python package jsonschema into $folder"
        rm -rf "$folder"
        python3 -m venv "$folder" >&2 && "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
            'jsonschema[format]==4.26.0' >&2 && touch "$folder/complete" || {
            rm -rf "$folder"
            say "it could not be installed (no index): the walks are not checked by it"
            echo "0 passed, 0 failed, 1 skipped"
            return 1
        }
    }
    export QUERN_JSONSCHEMA=$folder/bin/python
}

# need_transformers: the image processors of transformers, into the cache folder; QUERN_TRANSFORMERS names the Python that has them.
need_transformers() {
    local folder=${QUERN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quern}/transformers
    [ -z "${QUERN_TRANSFORMERS-}" ] || return 0
    [ -e "$folder/complete" ] || {
        need_packages python3-venv
        say "installing the Python packages transformers, torch and torchvision into $folder"
        rm -rf "$folder"
        python3 -m venv "$folder" >&2 && "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
            transformers==5.24.0 torch==2.15.0 torchvision==0.29.2 pillow >&2 && touch "$folder/complete" || {
            rm -rf "$folder"
            say "they could not be installed (no index): image processors are not compared"
            echo "0 passed, 0 failed, 1 skipped"
            return 1
        }
    }
    QUERN_TRANSFORMERS=$folder/bin/python
}

# need_converter: llama.cpp's converter of models, out of the source of llama-cpp-python, into the cache folder, and a Python that has
# what it needs (need_transformers); QUERN_LLAMA_CPP names it.
need_converter() {
    local folder=${QUERN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quern}/converter name=llama_cpp_python-0.3.36
    local inside=$name/vendor/llama.cpp
    need_transformers || return 1
    [ -z "${QUERN_LLAMA_CPP-}" ] || return 0
    [ -e "$folder/complete" ] || {
        say "fetching llama.cpp's converter (the source of llama-cpp-python, 75 MB) into $folder"
        rm -rf "$folder"
        mkdir -p "$folder" &&
            "$QUERN_TRANSFORMERS" -m pip download --quiet --no-deps --no-binary :all: -d "$folder" llama-cpp-python==0.3.36 >&2 &&
            tar xzf "$folder/$name.tar.gz" -C "$folder" --strip-components=3 "$inside/convert_hf_to_gguf.py" "$inside/conversion" \
                "$inside/gguf-py" >&2 && rm "$folder/$name.tar.gz" && touch "$folder/complete" || {
            rm -rf "$folder"
            say "it could not be fetched (no index): GGUF files of encoders are left out"
            echo "0 passed, 0 failed, 1 skipped"
            return 1
        }
    }
    QUERN_LLAMA_CPP=$folder
}

# need_client: the official client of OpenAI's API, for the tests of the server, the package gguf, for those of files written, and
# huggingface_hub, for those of models by name, into the cache folder (nothing of Python's own is changed). The Python is the one that tests/run takes.
need_client() {
    local python folder
    for python in "${PYTHON:-python3}" /usr/bin/python3; do
        "$python" -c 'import numpy, pytest' 2>/dev/null && break
    done
    folder=${QUERN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quern}
    folder=$folder/python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    PYTHONPATH=$folder "$python" -c 'import openai' 2>/dev/null || {
        say "installing the Python package openai into $folder"
        "$python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --target "$folder" openai==3.54.0 >&2 ||
            say "going on without it: the tests that need it are left out"
    }
    PYTHONPATH=$folder "$python" -c 'import gguf' 2>/dev/null || {
        say "installing the Python package gguf into $folder"
        "$python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps --target "$folder" \
            gguf==0.19.0 pyyaml tqdm >&2 || say "going on without it: the test that needs it is left out"
    }
    PYTHONPATH=$folder "$python" -c 'import huggingface_hub' 2>/dev/null || {
        say "installing the Python package huggingface_hub into $folder"
        "$python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --target "$folder" \
            huggingface_hub==2.4.0 >&2 || say "going on without it: the tests that need it are left out"
    }
}
