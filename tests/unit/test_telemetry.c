/* What a log entry says of steps: means over them. */
#include "offload/engine/engine.h"
#include "tests/testing.h"

/* A model of three layers, where the last has nothing to choose from. */
static struct step_report choice(struct engine_choice *c, struct choice_part *layers, bool first,
                                 int kept)
{
    layers[0] = (struct choice_part){4, first ? 0 : kept, 3, 4};
    layers[1] = (struct choice_part){2, first ? 0 : 2, 1, 8};
    layers[2] = (struct choice_part){0};
    *c = (struct engine_choice){first, {6, first ? 0 : kept + 2, 4, 12}, layers, 3};
    return (struct step_report){.selected = true, .choice = c};
}

static json_t *describe(const struct telemetry *t)
{
    json_t *entry = json_object();
    telemetry_describe(t, 1000, entry);
    return entry;
}

/* Takes the reference. */
static void assert_json(json_t *value, const char *expected)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(4));
    assert_string_equal(text ? text : "nothing", expected);
    free(text);
}

static void choices_are_told(void **state)
{
    (void)state;
    struct telemetry t = {0};
    struct choice_part layers[3];
    struct engine_choice c;
    struct step_report none = {0}, chosen = choice(&c, layers, true, 0);
    telemetry_add(&t, &none, 1);
    json_t *entry = describe(&t);
    assert_null(json_object_get(entry, "selection_share"));
    assert_null(json_object_get(entry, "selection_share_by_layer"));
    json_decref(entry);

    telemetry_add(&t, &chosen, 1); /* there was none before */
    entry = describe(&t);
    assert_json(json_object_get(entry, "selections"), "1");
    assert_json(json_object_get(entry, "selection_share"), "0.3333");
    assert_json(json_object_get(entry, "selection_share_by_layer"), "[0.75,0.125,null]");
    assert_null(json_object_get(entry, "selection_overlap"));
    assert_null(json_object_get(entry, "selection_overlap_by_layer"));
    json_decref(entry);

    chosen = choice(&c, layers, false, 1);
    telemetry_add(&t, &chosen, 1);
    chosen = choice(&c, layers, false, 3);
    layers[1].norm_chosen = 7;
    telemetry_add(&t, &chosen, 1);
    entry = describe(&t);
    assert_json(json_object_get(entry, "selections"), "3");
    assert_json(json_object_get(entry, "selection_overlap"), "0.6667");
    assert_json(json_object_get(entry, "selection_overlap_by_layer"), "[0.5,1.0,null]");
    assert_json(json_object_get(entry, "selection_share_by_layer"), "[0.75,0.375,null]");
    json_decref(entry);

    telemetry_clear(&t);
    entry = describe(&t);
    assert_json(json_object_get(entry, "selections"), "0");
    assert_null(json_object_get(entry, "selection_overlap"));
    json_decref(entry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
