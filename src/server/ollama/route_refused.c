/* Routes that change the models that a server has: it has one, which its command line names. */
#include <string.h>

#include "server/ollama/ollama.h"

void qn_route_ollama_refused(qn_exchange *ex)
{
    static const struct {
        const char *path, *sentence;
    } known[] = {
        {"/api/pull",
         "nothing is downloaded over HTTP: fetch the model's files, and start the server with them: quern "
         "serve MODEL"},
        {"/api/create",
         "no model is made over HTTP: write one with quern fuse or quern pack, and start the server "
         "with it: quern serve MODEL"},
        {"/api/delete",
         "no model is deleted over HTTP: end the server, and delete the model's files with rm"},
        {"/api/push", "no model is uploaded over HTTP: copy its files with another program, such as scp"},
        {"/api/copy", "the model has one name, which quern serve MODEL --model-name NAME sets"},
    };
    qn_api_error error;
    const char *sentence = "";
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(ex->path, known[i].path) == 0) sentence = known[i].sentence;
    qn_api_fail(&error, 501, "not_implemented", NULL, "%s is not supported: %s", ex->path, sentence);
    qn_exchange_fail(ex, &error);
}
