#include <stddef.h>

#include "server/files/request.h"

#define AT(field) offsetof(qn_api_request, field)

const qn_field qn_files_fields[] = {
    {"input_file_id", QN_FILES_BATCH, QN_FIELD_TEXT, AT(input_file_id), 0, 0, NULL, NULL, NULL},
    {"endpoint", QN_FILES_BATCH, QN_FIELD_TEXT, AT(endpoint), 0, 0, NULL, NULL, NULL},
    {"completion_window", QN_FILES_BATCH, QN_FIELD_TEXT, AT(completion_window), 0, 0, NULL, NULL, NULL},
    {"metadata", QN_FILES_BATCH, QN_FIELD_JSON, AT(metadata), 0, 0, NULL, NULL, NULL},
    {"output_expires_after", QN_FILES_BATCH, QN_FIELD_REFUSED, 0, 0, 0, NULL, NULL,
     "files are kept as long as --store-days says"},
    {0},
};
