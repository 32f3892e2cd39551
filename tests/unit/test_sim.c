/* model/plan/sim.h: cases that are worked out by hand. */
#include "tests/testing.h"

#include "model/plan/sim.h"

#include <math.h>

static void assert_time(double value, double expected)
{
    if (fabs(value - expected) > 1e-9)
        fail_msg("%.9g s, expected %.9g", value, expected);
}

/* So many seconds, using a share of one resource (none: 0). */
static struct sim_work work_of(double seconds, int resource, double share)
{
    struct sim_work w = {.what = "work", .seconds = seconds};
    if (share > 0)
        w.uses[w.n_uses++] = (struct sim_use){resource, share};
    return w;
}

static sim_op queue(struct sim *s, int lane, double seconds, int resource, double share)
{
    struct sim_work w = work_of(seconds, resource, share);
    return sim_queue(s, lane, &w, NULL, NULL);
}

static void operations_of_a_lane_run_in_order(void **state)
{
    (void)state;
    struct sim *s = sim_create();
    int lane = sim_lane(s);
    sim_op first = queue(s, lane, 1, 0, 0), second = queue(s, lane, 2, 0, 0);
    assert_time(sim_now(s), 0);
    assert_false(sim_done(s, first));
    sim_wait(s, second);
    assert_time(sim_now(s), 3);
    assert_time(sim_began(s, second), 1);
    assert_time(sim_ended(s, first), 1);
    assert_true(sim_done(s, first));
    assert_true(sim_done(s, 0));
    sim_destroy(s);
}

static void latency_uses_nothing(void **state)
{
    (void)state;
    struct sim *s = sim_create();
    int a = sim_lane(s), b = sim_lane(s), r = sim_resource(s);
    struct sim_work late = work_of(1, r, 1);
    late.latency = 2;
    sim_op x = sim_queue(s, a, &late, NULL, NULL), y = queue(s, b, 2, r, 1);
    sim_wait(s, x);
    assert_time(sim_ended(s, y), 2);
    assert_time(sim_ended(s, x), 3);
    sim_destroy(s);
}

/* Each of two has half, until the shorter one ends: 1 s of work ends at 2, 3 s at 4. */
static void a_resource_is_shared(void **state)
{
    (void)state;
    struct sim *s = sim_create();
    int a = sim_lane(s), b = sim_lane(s), r = sim_resource(s);
    sim_op x = queue(s, a, 1, r, 1), y = queue(s, b, 3, r, 1);
    sim_wait(s, y);
    assert_time(sim_ended(s, x), 2);
    assert_time(sim_ended(s, y), 4);
    sim_destroy(s);
}

/* Speeds rise together: 0.5 x + x = 1 gives x = 2/3, and 1 s of work takes 1.5. What another
 * resource holds back leaves its part: x and z share q and have half speed each, so x takes 0.2 of
 * r, and y runs at 0.8. */
static void shares_are_max_min_fair(void **state)
{
    (void)state;
    struct sim *s = sim_create();
    int a = sim_lane(s), b = sim_lane(s), c = sim_lane(s), r = sim_resource(s), q = sim_resource(s);
    sim_op x = queue(s, a, 1, r, 0.5), y = queue(s, b, 1, r, 1);
    sim_wait(s, y);
    assert_time(sim_ended(s, x), 1.5);
    assert_time(sim_ended(s, y), 1.5);
    struct sim_work both = work_of(1, r, 0.4);
    both.uses[both.n_uses++] = (struct sim_use){q, 1};
    x = sim_queue(s, a, &both, NULL, NULL);
    y = queue(s, b, 1.6, r, 1);
    sim_op z = queue(s, c, 1, q, 1);
    sim_wait(s, y);
    assert_time(sim_ended(s, x) - 1.5, 2);
    assert_time(sim_ended(s, z) - 1.5, 2);
    assert_time(sim_ended(s, y) - 1.5, 2);
    sim_destroy(s);
}

static void the_first_class_is_served_first(void **state)
{
    (void)state;
    struct sim *s = sim_create();
    int a = sim_lane(s), b = sim_lane(s), r = sim_resource(s);
    struct sim_work first = work_of(4, r, 0.25);
    first.first = true;
    sim_op x = sim_queue(s, a, &first, NULL, NULL), y = queue(s, b, 3, r, 1);
    sim_wait(s, y);
    assert_time(sim_ended(s, x), 4);
    assert_time(sim_ended(s, y), 4); /* 3 s at 0.75 */
    sim_destroy(s);
}

static void an_operation_waits_for_what_it_is_ordered_behind(void **state)
{
    (void)state;
    struct sim *s = sim_create();
    int a = sim_lane(s), b = sim_lane(s), c = sim_lane(s);
    sim_op x = queue(s, a, 3, 0, 0), y;
    queue(s, b, 1, 0, 0);
    sim_order(s, b, x);
    y = queue(s, b, 1, 0, 0);
    sim_order(s, c, sim_mark(s, b));
    sim_op z = queue(s, c, 1, 0, 0);
    sim_wait(s, z);
    assert_time(sim_began(s, y), 3);
    assert_time(sim_ended(s, z), 5);
    /* a mark of a lane that waits, without an operation behind the wait */
    sim_op later = queue(s, a, 2, 0, 0);
    sim_order(s, b, later);
    sim_op mark = sim_mark(s, b);
    sim_wait(s, mark);
    assert_time(sim_now(s), 7);
    sim_destroy(s);
}

/* What is queued later begins later and slows what is running from then on: A alone until 4, at
 * half speed until B has ended at 6, and 10 s of work are done at 11. */
static void the_host_gives_out_over_time(void **state)
{
    (void)state;
    struct sim *s = sim_create();
    int a = sim_lane(s), b = sim_lane(s), r = sim_resource(s);
    sim_op x = queue(s, a, 10, r, 1);
    sim_host(s, 4, "host");
    sim_op y = queue(s, b, 1, r, 1);
    sim_wait(s, y);
    assert_time(sim_now(s), 6);
    sim_wait(s, x);
    assert_time(sim_now(s), 11);
    sim_wait(s, y); /* long over */
    assert_time(sim_now(s), 11);
    sim_destroy(s);
}

struct called {
    struct sim *sim;
    int lane;
    double when;
    sim_op op;
};

static void hand_over(void *argument)
{
    struct called *c = argument;
    struct sim_work w = work_of(2, 0, 0);
    w.what = "worker";
    c->when = sim_now(c->sim);
    c->op = sim_queue(c->sim, c->lane, &w, NULL, NULL);
}

/* The call comes when the operation ends, though the host's clock is ahead, and gives out then. */
static void calls_come_at_their_time(void **state)
{
    (void)state;
    struct sim *s = sim_create();
    int a = sim_lane(s), worker = sim_lane(s);
    struct called c = {s, worker, -1, 0};
    struct sim_work w = work_of(1, 0, 0);
    sim_queue(s, a, &w, hand_over, &c);
    sim_op last = queue(s, a, 5, 0, 0);
    sim_host(s, 4, "host");
    assert_time(c.when, -1);
    assert_false(sim_done(s, last));
    assert_time(c.when, 1);
    assert_true(sim_done(s, c.op));
    assert_time(sim_began(s, c.op), 1);
    assert_time(sim_ended(s, c.op), 3);
    sim_destroy(s);
}

static void await_handed_over(void *argument)
{
    struct called *c = argument;
    sim_wait(c->sim, c->op);
    assert_time(sim_now(c->sim), 2); /* it does not pass within the call */
}

static void wait_again(void *argument)
{
    const struct called *c = argument;
    sim_wait(c->sim, c->op);
}

/* At 1 a worker gets 2 s of work, and at 2 a call begins to wait for it: its lane goes on at 3, as
 * does what is ordered behind it, and the host is not kept. The path goes on with the worker. */
static void a_call_that_waits_holds_its_lane(void **state)
{
    (void)state;
    struct sim *s = sim_create();
    struct sim_stretch *path;
    int a = sim_lane(s), b = sim_lane(s), worker = sim_lane(s);
    struct called c = {s, worker, -1, 0};
    struct sim_work w = work_of(1, 0, 0);
    sim_queue(s, a, &w, hand_over, &c);
    sim_op waits = sim_queue(s, a, &w, await_handed_over, &c), behind = queue(s, a, 4, 0, 0);
    sim_order(s, b, waits);
    sim_op ordered = queue(s, b, 1, 0, 0);
    sim_host(s, 2.5, "host");
    assert_false(sim_done(s, waits));
    assert_time(sim_now(s), 2.5);
    sim_wait(s, ordered);
    assert_time(sim_ended(s, waits), 3);
    assert_time(sim_began(s, behind), 3);
    assert_time(sim_now(s), 4);
    assert_int_equal(sim_critical_path(s, 0, &path), 3);
    assert_string_equal(path[1].what, "worker");
    assert_time(path[1].begin, 1);
    assert_time(path[1].end, 3);
    free(path);
    sim_queue(s, a, &w, wait_again, &c); /* for what has ended */
    sim_wait(s, behind);
    assert_time(sim_now(s), 7);
    sim_wait(s, queue(s, a, 1, 0, 0));
    assert_time(sim_now(s), 9);
    sim_destroy(s);
}

/* The host is busy for 1, the device works 2 for it, a worker 3 after that, the host is busy for 1
 * more; another stream's 4 nobody waited for. */
static void the_critical_path_is_what_was_waited_for(void **state)
{
    (void)state;
    struct sim *s = sim_create();
    struct sim_stretch *path;
    int a = sim_lane(s), b = sim_lane(s), worker = sim_lane(s);
    struct sim_work device = work_of(2, 0, 0), host_work = work_of(3, 0, 0),
                    other = work_of(4, 0, 0);
    device.what = "device";
    host_work.what = "worker";
    sim_host(s, 1, "host");
    sim_queue(s, b, &other, NULL, NULL);
    sim_op x = sim_queue(s, a, &device, NULL, NULL);
    sim_order(s, worker, x);
    sim_wait(s, sim_queue(s, worker, &host_work, NULL, NULL));
    sim_host(s, 1, "host");
    assert_int_equal(sim_critical_path(s, 0, &path), 4);
    static const struct sim_stretch expected[] = {
        {"host", 6, 7}, {"worker", 3, 6}, {"device", 1, 3}, {"host", 0, 1}};
    for (int i = 0; i < 4; i++) {
        assert_string_equal(path[i].what, expected[i].what);
        assert_time(path[i].begin, expected[i].begin);
        assert_time(path[i].end, expected[i].end);
    }
    free(path);
    assert_int_equal(sim_critical_path(s, 4, &path),
                     2); /* cut off where it is no longer asked for */
    assert_time(path[1].begin, 4);
    free(path);
    sim_forget(s);
    assert_true(sim_done(s, x));
    sim_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_of_a_lane_run_in_order),
        cmocka_unit_test(latency_uses_nothing),
        cmocka_unit_test(a_resource_is_shared),
        cmocka_unit_test(shares_are_max_min_fair),
        cmocka_unit_test(the_first_class_is_served_first),
        cmocka_unit_test(an_operation_waits_for_what_it_is_ordered_behind),
        cmocka_unit_test(the_host_gives_out_over_time),
        cmocka_unit_test(calls_come_at_their_time),
        cmocka_unit_test(a_call_that_waits_holds_its_lane),
        cmocka_unit_test(the_critical_path_is_what_was_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
