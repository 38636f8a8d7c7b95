/* notify.h - tell the service manager how things stand: the protocol of sd_notify(3).
 *
 * Thread: gateway.  Test: tests/e2e/test_secure.py */
#ifndef LG_GATEWAY_NOTIFY_H
#define LG_GATEWAY_NOTIFY_H

/* Keep NOTIFY_SOCKET for lg_notify_send and take it out of the environment, so that the worker does not inherit it.
 * path[108] is the caller's; "" when nobody listens. */
void lg_notify_init(char path[108]);

/* Send a state such as "READY=1".  Without a listener, or when it cannot be reached, nothing happens. */
void lg_notify_send(const char *path, const char *state);

#endif
