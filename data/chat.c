#include "data/chat.h"

#include "data/alloc.h"
#include "data/json.h"
#include "data/utf8.h"

#include <stdlib.h>
#include <string.h>

const char *chat_family_name(enum chat_family family)
{
    static const char *const names[] = {[CHAT_NONE] = "none",
                                        [CHAT_CHATML] = "ChatML",
                                        [CHAT_LLAMA3] = "Llama 3",
                                        [CHAT_MISTRAL] = "Mistral"};
    return names[family];
}

void chat_template_free(struct chat_template *c)
{
    char **strings[] = {&c->bos, &c->eos, &c->system, &c->dates, &c->before_user, &c->after_user};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++)
        free(*strings[i]);
    *c = (struct chat_template){0};
}

/* Reading a template. */

/* The text of a file of the tokenizer's as JSON; root is NULL where there is none. */
static bool parse_config(struct json_file *f, const struct tokenizer *t, const char *where,
                         struct zf_error *err)
{
    size_t n;
    const char *bytes = tokenizer_file(t, "tokenizer_config.json", &n);
    *f = (struct json_file){0};
    if (!bytes)
        return true;
    size_t mark = n >= 3 && memcmp(bytes, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    char *text = zf_malloc(n - mark + 1);
    memcpy(text, bytes + mark, n - mark);
    text[n - mark] = 0;
    return json_parse(f, where, text, n - mark, err);
}

/* Of several templates it is the one named "default". */
static const char *template_in(const json_t *config)
{
    const json_t *value = json_object_get(config, "chat_template"), *entry;
    size_t i;
    json_array_foreach(value, i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name && strcmp(name, "default") == 0)
            return json_string_value(json_object_get(entry, "template"));
    }
    return json_string_value(value);
}

static char *token_text(const json_t *config, const char *role)
{
    const json_t *value = json_object_get(config, role);
    if (json_is_object(value))
        value = json_object_get(value, "content");
    return zf_strdup(json_is_string(value) ? json_string_value(value) : "");
}

/* With ' for ", without white space outside of quotes: so that ways of writing are one. */
static char *normalize(const char *template)
{
    char *text = zf_malloc(strlen(template) + 1), *to = text, quote = 0;
    for (const char *p = template; *p; p++) {
        if (quote && *p == '\\' && p[1]) {
            *to++ = *p++;
            *to++ = *p;
        } else if (quote ? *p == quote : (*p == '\'' || *p == '"')) {
            quote = quote ? 0 : *p;
            *to++ = '\'';
        } else if (quote || !strchr(" \t\r\n", *p)) {
            *to++ = *p;
        }
    }
    *to = 0;
    return text;
}

/* n bytes of a template's string, its escapes resolved, as a new string. */
static char *unescape(const char *from, size_t n)
{
    char *text = zf_malloc(n + 1), *to = text;
    for (size_t i = 0; i < n; i++) {
        if (from[i] != '\\' || i + 1 == n) {
            *to++ = from[i];
            continue;
        }
        char c = from[++i];
        *to++ = c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
    }
    *to = 0;
    return text;
}

/* What stands between two marks, the first time that it is not empty and begins with no quote: then
 * it is a text of the template's own. A new string, or NULL. */
static char *find_text(const char *template, const char *before, const char *after)
{
    for (const char *p = template; (p = strstr(p, before)) != NULL;) {
        p += strlen(before);
        size_t line = *p == '\n' ? 1 : strncmp(p, "\\n", 2) == 0 ? 2 : 0;
        const char *begin = p + line, *end = strstr(begin, after);
        if (line && end && end > begin && *begin != '\'' && *begin != '"')
            return unescape(begin, (size_t)(end - begin));
    }
    return NULL;
}

/* The string of a normalized template that has this mark in it; NULL: none. */
static char *find_literal(const char *normalized, const char *mark)
{
    const char *at = strstr(normalized, mark), *begin = at, *end;
    if (!at)
        return NULL;
    while (begin > normalized && begin[-1] != '\'')
        begin--;
    end = strchr(at, '\'');
    return begin > normalized && end ? unescape(begin, (size_t)(end - begin)) : NULL;
}

/* Whether the template writes this in a turn. */
static bool says(const char *normalized, const char *words)
{
    return strstr(normalized, words) != NULL;
}

static bool read_chatml(struct chat_template *c, const char *template, const char *normalized)
{
    c->family = CHAT_CHATML;
    c->trims = says(normalized, "|trim");
    c->system = find_text(template, "<|im_start|>system", "<|im_end|>");
    return !says(normalized, "<think>") && says(normalized, "<|im_end|>");
}

static bool read_llama3(struct chat_template *c, const char *normalized)
{
    c->family = CHAT_LLAMA3;
    c->trims = says(normalized, "|trim");
    if (!says(normalized, "CuttingKnowledge") && !says(normalized, "Cutting Knowledge"))
        return says(normalized, "<|eot_id|>");
    char *cutting = find_literal(normalized, "Cutting Knowledge Date: ");
    const char *set = strstr(normalized, "date_string='");
    size_t n = set ? strcspn(set + 13, "'") : 0;
    if (cutting && set)
        c->dates = zf_format("%sToday Date: %.*s\n\n", cutting, (int)n, set + 13);
    free(cutting);
    return c->dates != NULL;
}

static bool read_mistral(struct chat_template *c, const char *normalized)
{
    /* How an answer is written, the more special first. */
    static const struct {
        const char *mark, *before, *after;
        bool trims;
    } answers[] = {
        {"' '+message['content']|trim+eos_token", " ", "", true},
        {"' '+message['content']+eos_token", " ", "", false},
        {"message['content']+eos_token+' '", "", " ", false},
        {"message['content']+eos_token", "", "", false},
    };
    c->family = CHAT_MISTRAL;
    c->before_user = find_literal(normalized, "[INST]");
    c->after_user = find_literal(normalized, "[/INST]");
    c->takes_system = says(normalized, "system_message");
    c->system_last = says(normalized, "loop.lastandsystem_message");
    for (size_t i = 0; i < sizeof answers / sizeof *answers && !c->before_answer; i++)
        if (says(normalized, answers[i].mark)) {
            c->before_answer = answers[i].before;
            c->after_answer = answers[i].after;
            c->trims = answers[i].trims;
        }
    return c->before_user && c->after_user && c->before_answer && !says(normalized, "<<SYS>>");
}

static bool read_family(struct chat_template *c, const char *template)
{
    char *normalized = normalize(template);
    bool known = says(normalized, "<|im_start|>")          ? read_chatml(c, template, normalized)
                 : says(normalized, "<|start_header_id|>") ? read_llama3(c, normalized)
                 : says(normalized, "[/INST]")             ? read_mistral(c, normalized)
                                                           : false;
    free(normalized);
    return known;
}

bool chat_template_read(struct chat_template *c, const struct tokenizer *t, const char *where,
                        struct zf_error *err)
{
    struct json_file config;
    size_t n;
    *c = (struct chat_template){0};
    if (!parse_config(&config, t, where, err))
        return false;
    const char *template = tokenizer_file(t, "chat_template.jinja", &n);
    if (!template)
        template = template_in(config.root);
    c->bos = token_text(config.root, "bos_token");
    c->eos = token_text(config.root, "eos_token");
    bool ok = !template || read_family(c, template) ||
              zf_fail(err,
                      "%s: its chat template is none of ChatML's, Llama 3's and Mistral's that are "
                      "known",
                      where);
    json_free(&config);
    if (!ok)
        chat_template_free(c);
    return ok;
}

/* Writing a text. */

void chat_text_free(struct chat_text *text)
{
    free(text->text);
    free(text->answers);
    *text = (struct chat_text){0};
}

static void append_bytes(struct chat_text *out, const char *bytes, size_t n)
{
    if (out->capacity - out->n <= n) {
        out->capacity = 2 * out->capacity + n + 256;
        out->text = zf_realloc(out->text, out->capacity);
    }
    memcpy(out->text + out->n, bytes, n);
    out->n += n;
    out->text[out->n] = 0;
}

void chat_append(struct chat_text *out, const char *text)
{
    append_bytes(out, text, strlen(text));
}

void chat_mark_answer(struct chat_text *out, size_t begin)
{
    out->answers = zf_realloc(out->answers, ((size_t)out->n_answers + 1) * sizeof *out->answers);
    out->answers[out->n_answers++] = (struct chat_span){begin, out->n};
}

/* What Python's str.strip takes for white space. */
static bool is_space(uint32_t code)
{
    return (code >= 9 && code <= 13) || (code >= 28 && code <= 32) || code == 0x85 ||
           code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
           code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

static void append_content(struct chat_text *out, const struct chat_template *c, const char *text)
{
    size_t begin = 0, n = strlen(text), end = n;
    if (c->trims) {
        uint32_t code;
        bool leading = true;
        end = 0;
        for (size_t at = 0, length; at < n; at += length) {
            length = utf8_decode(text + at, n - at, &code);
            bool space = length > 0 && is_space(code);
            length = length ? length : 1;
            if (leading && space)
                begin = at + length;
            leading = leading && space;
            if (!space)
                end = at + length;
        }
        end = end > begin ? end : begin;
    }
    append_bytes(out, text + begin, end - begin);
}

static bool is_role(const struct chat_turn *turn, const char *role)
{
    return strcmp(turn->role, role) == 0;
}

/* A turn between marks; `learned` is from what is said to the mark's end. */
static void append_turn(struct chat_text *out, const struct chat_template *c,
                        const struct chat_turn *turn, const char *end, const char *after)
{
    size_t begin = out->n;
    append_content(out, c, turn->content);
    chat_append(out, end);
    if (turn->learned)
        chat_mark_answer(out, begin);
    chat_append(out, after);
}

static void render_chatml(struct chat_text *out, const struct chat_template *c,
                          const struct chat_turn *turns, int n)
{
    if (c->system && (n == 0 || !is_role(&turns[0], "system"))) {
        chat_append(out, "<|im_start|>system\n");
        chat_append(out, c->system);
        chat_append(out, "<|im_end|>\n");
    }
    for (int i = 0; i < n; i++) {
        chat_append(out, "<|im_start|>");
        chat_append(out, turns[i].role);
        chat_append(out, "\n");
        append_turn(out, c, &turns[i], "<|im_end|>", "\n");
    }
}

static void append_header(struct chat_text *out, const char *role)
{
    chat_append(out, "<|start_header_id|>");
    chat_append(out, role);
    chat_append(out, "<|end_header_id|>\n\n");
}

static void render_llama3(struct chat_text *out, const struct chat_template *c,
                          const struct chat_turn *turns, int n)
{
    int first = 0;
    chat_append(out, c->bos);
    if (c->dates) {
        const struct chat_turn none = {"system", "", false};
        first = n > 0 && is_role(&turns[0], "system");
        append_header(out, "system");
        chat_append(out, c->dates);
        append_turn(out, c, first ? &turns[0] : &none, "<|eot_id|>", "");
    }
    for (int i = first; i < n; i++) {
        append_header(out, turns[i].role);
        append_turn(out, c, &turns[i], "<|eot_id|>", "");
    }
}

static bool render_mistral(struct chat_text *out, const struct chat_template *c,
                           const struct chat_turn *turns, int n, struct zf_error *err)
{
    const char *system = n > 0 && is_role(&turns[0], "system") ? turns[0].content : NULL;
    const int first = system != NULL;
    if (system && !c->takes_system)
        return zf_fail(err, "the model's chat template takes no system message");
    chat_append(out, c->bos);
    for (int i = first; i < n; i++) {
        bool user = (i - first) % 2 == 0;
        if (!is_role(&turns[i], user ? "user" : "assistant"))
            return zf_fail(err,
                           "message %d is of role \"%.40s\", but user and assistant take turns",
                           i + 1, turns[i].role);
        if (!user) {
            chat_append(out, c->before_answer);
            append_turn(out, c, &turns[i], c->eos, c->after_answer);
            continue;
        }
        chat_append(out, c->before_user);
        if (system && i == (c->system_last ? n - 1 : first)) {
            chat_append(out, system);
            chat_append(out, "\n\n");
        }
        chat_append(out, turns[i].content);
        chat_append(out, c->after_user);
    }
    return true;
}

bool chat_render(struct chat_text *out, const struct chat_template *c,
                 const struct chat_turn *turns, int n, bool to_answer, struct zf_error *err)
{
    for (int i = 0; i < n; i++) {
        bool system = is_role(&turns[i], "system");
        if (!system && !is_role(&turns[i], "user") && !is_role(&turns[i], "assistant"))
            return zf_fail(err,
                           "message %d is of role \"%.40s\", but it is system, user or assistant",
                           i + 1, turns[i].role);
        if (system && i > 0)
            return zf_fail(err, "message %d is the system's, but that is the first one", i + 1);
    }
    if (c->family == CHAT_MISTRAL)
        return render_mistral(out, c, turns, n, err);
    if (c->family == CHAT_LLAMA3)
        render_llama3(out, c, turns, n);
    else
        render_chatml(out, c, turns, n);
    if (to_answer && c->family == CHAT_LLAMA3)
        append_header(out, "assistant");
    else if (to_answer)
        chat_append(out, "<|im_start|>assistant\n");
    return true;
}
