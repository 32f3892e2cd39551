/* What log entries say of choices. */
#include "offload/engine/engine.h"
#include "tests/testing.h"

/* Takes the reference. */
static void assert_json(json_t *value, const char *expected)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(4));
    assert_string_equal(text ? text : "nothing", expected);
    free(text);
}

/* A model of three layers, where the last has nothing to choose from. */
static void choices_are_told(void **state)
{
    (void)state;
    struct choice_part layers[] = {{4, 1, 3, 4}, {2, 2, 1, 8}, {0}};
    struct engine_choice c = {false, {6, 3, 4, 12}, layers, 3};
    json_t *entry = json_object();
    telemetry_describe_choice(&c, entry);
    assert_json(json_object_get(entry, "selection_overlap"), "0.5");
    assert_json(json_object_get(entry, "selection_overlap_by_layer"), "[0.25,1.0,null]");
    assert_json(json_object_get(entry, "selection_share"), "0.3333");
    assert_json(json_object_get(entry, "selection_share_by_layer"), "[0.75,0.125,null]");
    json_object_clear(entry);

    c.first = true; /* there was none before */
    telemetry_describe_choice(&c, entry);
    assert_json(json_object_get(entry, "selection_share"), "0.3333");
    assert_null(json_object_get(entry, "selection_overlap"));
    assert_null(json_object_get(entry, "selection_overlap_by_layer"));
    json_decref(entry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
