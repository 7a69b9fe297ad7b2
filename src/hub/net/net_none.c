/* A build without libcurl: models that are on this machine are found, and none is fetched. */
#include "hub/net/net.h"

qn_status qn_net_open(int timeout_s, qn_net **out)
{
    return qn_fail(QN_E_UNSUPPORTED, "this quern was built without libcurl, so it fetches nothing: install "
                                     "libcurl4-openssl-dev and build again, or give the path of a model");
}

void qn_net_close(qn_net *net)
{
}

qn_status qn_net_start(qn_net *net, const qn_net_request *request, qn_net_call **out)
{
    return qn_net_open(0, NULL);
}

qn_status qn_net_wait(qn_net *net, int timeout_ms, qn_net_call **done, qn_status *status)
{
    return qn_net_open(0, NULL);
}

const qn_net_reply *qn_net_get_reply(const qn_net_call *call)
{
    return NULL;
}

void *qn_net_get_user(const qn_net_call *call)
{
    return NULL;
}

void qn_net_end(qn_net *net, qn_net_call *call)
{
}
