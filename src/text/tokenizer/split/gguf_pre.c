#include "text/tokenizer/split/gguf_pre.h"

#include <stddef.h>
#include <string.h>

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define CL100K(numbers) \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
/* Words of o200k: upper case then lower case, with a contraction behind (suffix). */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K(suffix, numbers)                                                                               \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" suffix \
    "|" numbers "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES
#define DEEPSEEK3_WORDS                                                                                 \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+" \
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES
#define CJK_KANA "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"
#define CJK_WIDE "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
/* The cased letters of Unicode 11, as deepseek-llm spells them. */
#define DEEPSEEK_LETTERS                                                                                     \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}\\x{295}-" \
    "\\x{2af}"                                                                                               \
    "\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-"   \
    "\\x{3a1}"                                                                                               \
    "\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{"  \
    "13f5}"                                                                                                  \
    "\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{"    \
    "1d79}-\\x{1d9a}"                                                                                        \
    "\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{"    \
    "1f59}\\x{1f5b}"                                                                                         \
    "\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{"     \
    "1fc6}-\\x{1fcc}"                                                                                        \
    "\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{"    \
    "2102}\\x{2107}"                                                                                         \
    "\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}" \
    "-\\x{2134}"                                                                                             \
    "\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}" \
    "-\\x{2ce4}"                                                                                             \
    "\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{"     \
    "a771}-\\x{a787}"                                                                                        \
    "\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{"    \
    "ff41}-\\x{ff5a}"                                                                                        \
    "\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{"    \
    "10cf2}"                                                                                                 \
    "\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"
#define DEEPSEEK_PUNCTUATION \
    "!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}"
#define BLOOM " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"

static const qn_gguf_pre table[] = {
    {"default", 0, 0, {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {"llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     1,
     1,
     {CL100K("\\p{N}{1,3}")}},
    {"dbrx smaug-bpe glm4 chatglm-bpe", 0, 0, {CL100K("\\p{N}{1,3}")}},
    {"qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
     0,
     0,
     {CL100K("\\p{N}")}},
    {"qwen35",
     0,
     0,
     {CONTRACTIONS
      "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES}},
    {"gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert exaone4 mpt olmo "
     "jais "
     "trillion granite-docling",
     0,
     0,
     {GPT2}},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", 0, 0, {"\\p{N}", GPT2}},
    {"falcon", 0, 0, {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {"deepseek-llm",
     0,
     0,
     {"[\\r\\n]", "\\s?[" DEEPSEEK_LETTERS "]+", "\\s?[" DEEPSEEK_PUNCTUATION "]+", "\\s+$", CJK_WIDE,
      "\\p{N}+"}},
    {"deepseek-coder", 0, 0, {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CJK_WIDE, "\\p{N}"}},
    {"deepseek-v3 hunyuan-dense joyai-llm", 0, 0, {"\\p{N}{1,3}", CJK_KANA, DEEPSEEK3_WORDS}},
    {"gpt-4o llama4 kanana2 talkie minimax-m2", 0, 0, {O200K(CONTRACTIONS "?", "\\p{N}{1,3}")}},
    {"tiny_aya cohere2moe", 0, 0, {"\\d{1,3}(?=(?:\\d{3})*\\b)", O200K(CONTRACTIONS "?", "\\p{N}{1,3}")}},
    {"tekken", 1, 1, {O200K("", "\\p{N}")}},
    {"youtu",
     1,
     0,
     {"[\\x{ac00}-\\x{d7a3}\\x{3131}-\\x{318e}]+|[\\x{ff01}\\x{2026}\\x{201c}\\x{201d}\\x{2018}\\x{2019}\\x{"
      "2014}\\x{ff1a}"
      "\\x{ff1b}\\x{ff0c}\\x{3001}-\\x{303f}\\x{fe30}-\\x{fe4f}]+|[\\x{3105}-\\x{312f}]+|" CJK_KANA,
      O200K(CONTRACTIONS "?", "\\p{N}")}},
    {"bloom gpt3-finnish poro-chat", 0, 0, {BLOOM}},
    {"viking", 0, 0, {BLOOM, "\\p{N}"}},
    {"bailingmoe bailingmoe2 llada-moe",
     0,
     0,
     {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| "
      "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|"
      "\\s+(?!\\S)|\\s+"}},
    {"seed-coder",
     0,
     0,
     {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" SPACES}},
    {"exaone-moe",
     0,
     0,
     {CONTRACTIONS
      "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|"
      "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {"minicpm5", 1, 0, {"\\p{N}{1,3}", CL100K("\\p{N}+")}},
    {"chameleon",
     0,
     1,
     {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", "\\p{N}",
      "[\\p{P}!-/:-@\\[-`{-~]", GPT2}},
};

const qn_gguf_pre *qn_gguf_pre_find(const char *name, unsigned long n)
{
    if (n == 0 || memchr(name, ' ', n)) return NULL;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        for (const char *at = table[i].names; *at;) {
            size_t length = strcspn(at, " ");
            if (length == n && memcmp(at, name, n) == 0) return &table[i];
            at += length + (at[length] == ' ');
        }
    return NULL;
}

const qn_gguf_pre *qn_gguf_pre_at(unsigned long i)
{
    return i < sizeof table / sizeof table[0] ? &table[i] : NULL;
}

json_t *qn_gguf_pre_json(const char *const *regexes, unsigned long n)
{
    json_t *list = json_array();
    int failed = !list;
    for (unsigned long i = 0; i < n && regexes[i]; i++)
        failed |=
            json_array_append_new(list, json_pack("{s:s,s:{s:s},s:s,s:b}", "type", "Split", "pattern",
                                                  "Regex", regexes[i], "behavior", "Isolated", "invert", 0));
    failed |= json_array_append_new(
        list, json_pack("{s:s,s:b,s:b}", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 0));
    json_t *value = json_pack("{s:s,s:o}", "type", "Sequence", "pretokenizers", list);
    if (!failed) return value;
    json_decref(value);
    return NULL;
}
