#include "server/core/api/about.h"
#include "server/files/files.h"
#include "server/files/request.h"
#include "server/openai/openai.h"

static const qn_route_about about_upload = {
    .summary = "Stores a file",
    .body = "multipart/form-data",
    .parts =
        "{\"type\":\"object\",\"properties\":{\"purpose\":{\"type\":\"string\",\"enum\":[\"batch\","
        "\"assistants\","
        "\"fine-tune\",\"vision\",\"user_data\",\"evals\"]},\"file\":{\"type\":\"string\","
        "\"contentMediaType\":"
        "\"application/octet-stream\"}},\"required\":[\"purpose\",\"file\"],\"additionalProperties\":false}"};
static const qn_route_about about_files = {.summary = "Lists files", .query = "purpose after limit order"};
static const qn_route_about about_file = {.summary = "Describes a file"};
static const qn_route_about about_delete = {.summary = "Deletes a file"};
static const qn_route_about about_content = {.summary = "Gives the content of a file",
                                             .answer = "application/octet-stream"};
static const qn_route_about about_create = {.summary = "Begins to answer the requests of a file",
                                            .fields = qn_files_fields,
                                            .route = QN_FILES_BATCH,
                                            .required = "input_file_id endpoint completion_window"};
static const qn_route_about about_batches = {.summary = "Lists batches", .query = "after limit order"};
static const qn_route_about about_batch = {.summary = "Describes a batch"};
static const qn_route_about about_cancel = {.summary = "Cancels a batch"};

static const qn_route routes[] = {
    {"POST", "/v1/files", qn_route_file_upload, 0, 0, &about_upload, &qn_files_sink},
    {"GET", "/v1/files", qn_route_files, 0, 0, &about_files, NULL},
    {"GET", "/v1/files/{file_id}", qn_route_file_get, 0, 0, &about_file, NULL},
    {"DELETE", "/v1/files/{file_id}", qn_route_file_delete, 0, 0, &about_delete, NULL},
    {"GET", "/v1/files/{file_id}/content", qn_route_file_content, 0, 0, &about_content, NULL},
    {"POST", "/v1/batches", qn_route_batch_create, 0, 1, &about_create, NULL},
    {"GET", "/v1/batches", qn_route_batches, 0, 0, &about_batches, NULL},
    {"GET", "/v1/batches/{batch_id}", qn_route_batch_get, 0, 0, &about_batch, NULL},
    {"POST", "/v1/batches/{batch_id}/cancel", qn_route_batch_cancel, 0, 0, &about_cancel, NULL},
};

const qn_route_table qn_files_routes = {routes, sizeof routes / sizeof *routes, qn_openai_error_write, NULL};
