/* What a strict JSON parser accepts, the scanner can skip; and it ends with a status on anything else. (Texts
 * with a NUL are left out of the comparison: jansson overlooks one behind a number.) */
#include "format/safetensors/json_scan.h"

#include <stdlib.h>
#include <string.h>

#include "base/json/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    qn_arena arena = {0};
    qn_json_scan scan = {.what = "fuzz", .begin = text, .at = text, .end = text + size, .arena = &arena};
    json_t *value = NULL;
    int skipped = qn_scan_skip(&scan) && qn_scan_end(&scan);
    if (skipped != (scan.status == QN_OK)) abort();
    if (size && !memchr(text, 0, size) && qn_json_depth_ok(text, size, QN_SCAN_DEPTH_MAX) &&
        qn_json_parse("fuzz", text, size, &value) == QN_OK) {
        if (!skipped) abort();
        json_decref(value);
    }
    /* The pulling calls, as the readers use them. */
    scan = (qn_json_scan){.what = "fuzz", .begin = text, .at = text, .end = text + size, .arena = &arena};
    int first = 1, first_element = 1;
    char *key, *string;
    size_t n;
    int64_t count;
    qn_scan_begin(&scan, '{');
    while (qn_scan_key(&scan, &first, &key, &n)) {
        if (key[n]) abort();
        if (n % 3 == 0) {
            qn_scan_string(&scan, &string, &n);
        } else if (n % 3 == 1) {
            qn_scan_begin(&scan, '[');
            for (first_element = 1; qn_scan_element(&scan, &first_element);) qn_scan_count(&scan, &count);
        } else {
            qn_scan_skip(&scan);
        }
    }
    qn_arena_clear(&arena);
    return 0;
}
