#include "data/pipeline_settings.h"

#include "data/alloc.h"
#include "data/file.h"

#include <stdlib.h>
#include <string.h>

void settings_free(struct settings *s)
{
    for (int i = 0; i < 4; i++)
        free(s->paths[i]);
    json_free(&s->config);
    json_free(&s->special);
    json_free(&s->added);
    json_free(&s->model);
}

static bool is_set_to(const struct json_file *f, const char *key, const char *value)
{
    const char *text = json_string_value(settings_get(f, key));
    return text && strcmp(text, value) == 0;
}

/* What changes ids in Transformers, and is not done here. */
static bool check_settings(const struct settings *s, struct zf_error *err)
{
    static const char *const flags[] = {"split_special_tokens", "fix_mistral_regex"};
    if (is_set_to(&s->config, "truncation_side", "left"))
        return json_fail(&s->config, "truncation_side",
                         "\"right\": a sentence that is too long is cut at its end", err);
    for (int i = 0; i < 2; i++)
        if (json_is_true(settings_get(&s->config, flags[i])))
            return json_fail(&s->config, flags[i], "false: it is not supported", err);
    return true;
}

bool settings_load(struct settings *s, const char *directory, const char *model_type,
                   struct zf_error *err)
{
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json",
                                        "added_tokens.json", "config.json"};
    struct json_file *files[] = {&s->config, &s->special, &s->added, &s->model};
    *s = (struct settings){0};
    bool ok = true;
    for (int i = 0; i < 4 && ok; i++) {
        s->paths[i] = zf_format("%s/%s", directory, names[i]);
        if (file_exists(s->paths[i]))
            ok = json_load(files[i], s->paths[i], err);
    }
    s->model_type =
        model_type ? model_type : json_string_value(settings_get(&s->model, "model_type"));
    ok = ok && check_settings(s, err);
    if (!ok)
        settings_free(s);
    return ok;
}

json_t *settings_get(const struct json_file *f, const char *key)
{
    return f->root ? json_object_get(f->root, key) : NULL;
}

const char *settings_class(const struct settings *s)
{
    const char *class = json_string_value(settings_get(&s->config, "tokenizer_class"));
    return class ? class : json_string_value(settings_get(&s->model, "tokenizer_class"));
}

bool settings_class_is(const struct settings *s, const char *name)
{
    const char *class = settings_class(s);
    size_t n = strlen(name);
    return class && strncmp(class, name, n) == 0 && (!class[n] || strcmp(class + n, "Fast") == 0);
}

bool settings_get_flag(const struct settings *s, const char *key, bool *value, struct zf_error *err)
{
    return !s->config.root || json_get_bool(&s->config, key, value, err);
}

const char *settings_content(const json_t *value)
{
    return json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
}

const char *settings_role(const struct settings *s, const char *role, const char *usual)
{
    const json_t *value = settings_get(&s->config, role);
    if (!value)
        value = settings_get(&s->special, role);
    return value ? settings_content(value) : usual;
}
