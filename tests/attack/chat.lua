-- For wrk: short chats with a key.
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer anna"
wrk.body = '{"messages":[{"role":"user","content":"Hello"}],"max_tokens":4}'
