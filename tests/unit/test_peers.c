/* test_peers.c - connections counted by address. */
#include "gateway/net/peers.h"

#include "base/mem.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

static struct sockaddr_storage addr(const char *text) {
    struct sockaddr_storage a = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&a;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&a;
    if (!text) {
        a.ss_family = AF_UNIX;
    } else if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        a.ss_family = AF_INET;
    } else {
        assert_int_equal(inet_pton(AF_INET6, text, &v6->sin6_addr), 1);
        a.ss_family = AF_INET6;
    }
    return a;
}

static lg_status enter(lg_peers *p, const char *text, lg_peer **peer) {
    struct sockaddr_storage a = addr(text);
    return lg_peers_enter(p, (struct sockaddr *)&a, peer);
}

static void test_each_address_for_itself(void **state) {
    (void)state;
    lg_peers p = {.max = 2};
    lg_peer *a[2], *b[2], *x;
    for (int i = 0; i < 2; i++) assert_int_equal(enter(&p, "192.0.2.1", &a[i]), LG_OK);
    assert_int_equal(enter(&p, "192.0.2.1", &x), LG_AGAIN);
    assert_int_equal(enter(&p, "::ffff:192.0.2.1", &x), LG_AGAIN); /* the same, mapped */
    for (int i = 0; i < 2; i++) assert_int_equal(enter(&p, "2001:db8:1:2::1", &b[i]), LG_OK);
    assert_int_equal(enter(&p, "2001:db8:1:2:ffff::9", &x), LG_AGAIN); /* one subscriber */
    lg_peers_leave(&p, a[0]);
    assert_int_equal(enter(&p, "192.0.2.1", &a[0]), LG_OK);
    for (int i = 0; i < 2; i++) lg_peers_leave(&p, a[i]);
    for (int i = 0; i < 2; i++) lg_peers_leave(&p, b[i]);
    assert_int_equal(lg_mem_alive(), 0);
}

static void test_this_machine(void **state) {
    (void)state;
    static const char *const local[] = {"127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1",
                                        NULL};
    lg_peer *at[2 * LG_COUNT(local)], *x;
    lg_peers p = {.max = 2};
    for (size_t i = 0; i < LG_COUNT(at); i++)
        assert_int_equal(enter(&p, local[i % LG_COUNT(local)], &at[i]), LG_OK);
    p.max_for_local = true;
    for (size_t i = 0; i < LG_COUNT(local); i++)
        assert_int_equal(enter(&p, local[i], &x), LG_AGAIN);
    for (size_t i = 0; i < LG_COUNT(at); i++) lg_peers_leave(&p, at[i]);
    assert_int_equal(lg_mem_alive(), 0);
}

static void test_many_addresses(void **state) {
    (void)state;
    static lg_peer *at[5000];
    lg_peers p = {.max = 1};
    lg_peer *x;
    for (size_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < LG_COUNT(at); i++) {
            struct sockaddr_in a = {.sin_family = AF_INET};
            a.sin_addr.s_addr = htonl(0x0a000000u + i * 7);
            assert_int_equal(lg_peers_enter(&p, (struct sockaddr *)&a, &at[i]), LG_OK);
            assert_int_equal(lg_peers_enter(&p, (struct sockaddr *)&a, &x), LG_AGAIN);
        }
        for (size_t i = 0; i < LG_COUNT(at); i++) lg_peers_leave(&p, at[i * 3 % LG_COUNT(at)]);
        assert_int_equal(lg_mem_alive(), 0);
    }
}

static void test_no_memory(void **state) {
    (void)state;
    lg_peers p = {0};
    lg_peer *x;
    lg_mem_fail_at(1);
    assert_int_equal(enter(&p, "192.0.2.1", &x), LG_E_NOMEM);
    lg_mem_fail_at(0);
    lg_peers_leave(&p, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_address_for_itself),
        cmocka_unit_test(test_this_machine),
        cmocka_unit_test(test_many_addresses),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
