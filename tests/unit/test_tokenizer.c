/* data/tokenizer: which files are chosen, what malformed ones are told, bytes that are no text,
 * decoding, and encoding from many threads. */
#include "tests/unit/tokenizer_testing.h"

#include "data/utf8.h"

#include <pthread.h>

/* The 256 byte symbols with ids from 0, then `more`; without the symbol `left_out` unless it is -1.
 * A new string. */
static char *vocab_text(int left_out, const char *more)
{
    char *text = zf_malloc(256 * 20 + strlen(more) + 4), *end = text;
    int id = 0;
    *end++ = '{';
    for (int i = 0; i < 0x144; i++) {
        bool symbol = (i >= '!' && i <= '~') || (i >= 0xA1 && i != 0xAD);
        if (symbol && i != left_out)
            end += sprintf(end, "\"\\u%04x\": %d, ", (unsigned)i, id++);
    }
    sprintf(end, "%s}", more);
    return text;
}

static void put_vocab(int left_out, const char *more, const char *merges)
{
    char *text = vocab_text(left_out, more);
    put("vocab.json", text);
    put("merges.txt", merges);
    free(text);
}

static void check_encoding(const struct tokenizer *t, const char *text, size_t n, const int *ids,
                           size_t n_ids)
{
    int got[64];
    assert_int_equal(tokenizer_encode(t, text, n, got, 64), n_ids);
    for (size_t i = 0; i < n_ids; i++)
        assert_int_equal(got[i], ids[i]);
}

#define assert_encodes(t, text, ...)                                                               \
    check_encoding(t, text, sizeof text - 1, (const int[]){__VA_ARGS__},                           \
                   sizeof((const int[]){__VA_ARGS__}) / sizeof(int))

static void merges_in_order(void **state)
{
    (void)state;
    /* h e l o: 71 68 75 78; a space: 220 */
    put_vocab(-1,
              "\"ll\": 256, \"he\": 257, \"hell\": 258, \"el\": 259, \"\\u0120he\": 260, "
              "\"<|endoftext|>\": 261",
              "#version: 0.2\nl l\r\nh e\nhe ll\ne l\n\xC4\xA0 he\n");
    struct tokenizer *t = load(folder);
    assert_string_equal(tokenizer_kind(t), "BPE");
    assert_int_equal(tokenizer_vocab_size(t), 262);
    assert_int_equal(tokenizer_eos(t), 261);
    assert_encodes(t, "hello", 258, 78);
    assert_encodes(t, "helo", 257, 75, 78);
    assert_encodes(t, "elll", 68, 256, 75);
    assert_encodes(t, " hello", 220, 258, 78);
    assert_encodes(t, " he<|endoftext|>l", 260, 261, 75);
    assert_int_equal(tokenizer_encode(t, "", 0, NULL, 0), 0);
    tokenizer_free(t);
}

static void encodes_any_bytes(void **state)
{
    (void)state;
    put_vocab(-1, "\"ll\": 256", "l l\n");
    struct tokenizer *t = load(folder);
    assert_int_equal(tokenizer_eos(t), -1);
    /* The symbols of visible bytes come first, then those of the others: 0x00 is 188. */
    assert_encodes(t, "\0l\0ll", 188, 75, 188, 256);
    assert_encodes(t, "\xFF\xC3", 187, 127);
    char text[512], *back;
    size_t n = 0, n_back;
    for (int i = 0; i < 256; i++) {
        text[n++] = (char)i;
        text[n++] = (char)(255 - i);
    }
    int ids[512];
    size_t n_ids = tokenizer_encode(t, text, n, ids, 512);
    back = tokenizer_decode(t, ids, n_ids, &n_back);
    assert_int_equal(n_back, n);
    assert_memory_equal(back, text, n);
    free(back);
    tokenizer_free(t);
}

/* A byte that is no text splits words as U+FFFD, its replacement, would. */
static void splits_at_bad_bytes_as_at_replacements(void **state)
{
    (void)state;
    put_vocab(-1, "\"\\u0120\xC3\x83\": 256, \"a\xC3\x83\": 257, \"\xC3\x83!\": 258",
              "\xC4\xA0 \xC3\x83\na \xC3\x83\n\xC3\x83 !\n");
    struct tokenizer *t = load(folder);
    assert_encodes(t, " \xC3", 256);
    assert_encodes(t, "a\xC3", 64, 127);
    assert_encodes(t, "\xC3!", 258);
    assert_encodes(t, "\xED\xA0\x80", 169, 254, 222);
    tokenizer_free(t);
}

static void decodes_only_its_ids(void **state)
{
    (void)state;
    struct tokenizer *t = load(SAMPLE);
    const int ids[] = {-1, 39, 8000, 72, 1 << 30, 7999};
    size_t n;
    char *text = tokenizer_decode(t, ids, 6, &n);
    assert_string_equal(text, "Hi<|endoftext|>");
    assert_int_equal(n, strlen(text));
    free(text);
    tokenizer_free(t);
}

static void refuses_bad_vocabularies(void **state)
{
    (void)state;
    put_vocab(-1, "\"ll\": 256,\n\"he\": 258", "");
    refuses("vocab.json: the token \"he\" has the id 258, but the ids of 258 tokens are 0 to 257");
    put_vocab(-1, "\"ll\": -1", "");
    refuses("the token \"ll\" has the id -1");
    put_vocab(-1, "\"ll\": 99999999999999999999", "");
    refuses("the token \"ll\" has the id 2147483647");
    put_vocab(-1, "\"ll\": 256,\n\"he\": 256", "");
    refuses("the tokens \"ll\" and \"he\" both have the id 256");
    put_vocab(-1, "\"ll\": 256,\n\"ll\": 257", "");
    refuses("the token \"ll\" has two ids, 256 and 257");
    put_vocab(-1, "\n\"ll\": 256.5", "");
    refuses("vocab.json:2: found 256.5 where a whole number belongs");
    put_vocab(-1, "\n\"ll\": \"x\"", "");
    refuses("vocab.json:2: found \"x\" where a whole number belongs");
    put_vocab(-1, "\n\"ll\\x\": 256", "");
    refuses("vocab.json:2: found \\x\": where a valid escape belongs");
    put_vocab(-1, "\n\"\\ud800\": 256", "");
    refuses("where a valid escape belongs");
    put("vocab.json", "{\"a\": 0,\n\"b\": 1");
    refuses("vocab.json:2: the file ends where '}' belongs");
    put("vocab.json", "{\"a\": 0,\n\"b");
    refuses("vocab.json:2: the file ends where the rest of a string belongs");
    put("vocab.json", "{\"a\": 0}\n{");
    refuses("vocab.json:2: found { where the end of the file belongs");
    put("vocab.json", "[]");
    refuses("vocab.json:1: found [ where '{' belongs");
    put("vocab.json", "");
    refuses("vocab.json:1: the file ends where '{' belongs");
}

static void refuses_bad_merges(void **state)
{
    (void)state;
    put_vocab(-1, "\"ll\": 256", "#version: 0.2\nl l\nl o\n");
    refuses("merges.txt:3: a merge makes \"lo\", which is not in the vocabulary");
    put_vocab(-1, "\"ll\": 256", "l l\n\nll lll\n");
    refuses("merges.txt:3: a merge needs \"lll\", which is not in the vocabulary");
    put_vocab(-1, "\"ll\": 256", "l l\nl l\n");
    refuses("merges.txt:2: the merge of \"l\" and \"l\" is there already");
    put_vocab(-1, "\"ll\": 256", "l l\nll");
    refuses("merges.txt:2: \"ll\" is not two tokens with a space between");
    put_vocab(-1, "\"ll\": 256", "l \n");
    refuses("merges.txt:1: \"l \" is not two tokens");
    put_vocab(-1, "\"ll\": 256", "l l l\n");
    refuses("merges.txt:1: \"l l l\" is not two tokens");
}

/* A tokenizer.json of a vocabulary, which it frees, and the parts that a test varies. */
static void put_json_of(char *vocab, const char *pre_tokenizer, const char *model,
                        const char *merges, const char *rest)
{
    char *text = zf_format("{\"pre_tokenizer\": %s,\n\"model\": {%s\n\"vocab\": %s,\n"
                           "\"merges\": %s\n}%s}",
                           pre_tokenizer, model, vocab, merges, rest);
    put("tokenizer.json", text);
    free(vocab);
    free(text);
}

/* The same, of the byte symbols and "ll". */
static void put_json(const char *pre_tokenizer, const char *model, const char *merges,
                     const char *rest)
{
    put_json_of(vocab_text(-1, "\"ll\": 256"), pre_tokenizer, model, merges, rest);
}

static const char byte_level[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}";

static void reads_tokenizer_json(void **state)
{
    (void)state;
    put_json(byte_level, "\"type\": \"BPE\",", "[\"l l\"]", "");
    struct tokenizer *t = load(folder);
    assert_encodes(t, "lll", 256, 75);
    tokenizer_free(t);
    put_json("{\"type\": \"ByteLevel\"}", "", "[[\"l\", \"l\"]]",
             ", \"added_tokens\": [{\"id\": 257, \"content\": \"<s>\"}]");
    t = load(folder);
    assert_encodes(t, "ll<s>", 220, 256, 257);
    tokenizer_free(t);
}

/* A TemplateProcessing with this pair and these ids of "<s>". */
static void put_template(const char *pair, const char *ids)
{
    char *rest = zf_format(", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": "
                           "[{\"Sequence\": {\"id\": \"A\"}}], \"pair\": [%s], \"special_tokens\": "
                           "{\"<s>\": {\"id\": \"<s>\", \"ids\": [%s]}}}",
                           pair, ids);
    put_json(byte_level, "", "[]", rest);
    free(rest);
}

static void check_ids(const int *got, int n, const int *expected, int n_expected)
{
    assert_int_equal(n, n_expected);
    for (int i = 0; i < n; i++)
        assert_int_equal(got[i], expected[i]);
}

/* What stands in front of, between and behind two texts. */
static void check_pair(const struct tokenizer *t, const int *before, int n_before,
                       const int *between, int n_between, const int *after, int n_after)
{
    const struct token_template a = tokenizer_template(t, true);
    check_ids(a.ids, a.before, before, n_before);
    check_ids(a.ids + a.before, a.between - a.before, between, n_between);
    check_ids(a.ids + a.between, a.n - a.between, after, n_after);
}

static void reads_templates(void **state)
{
    (void)state;
    put_template("{\"SpecialToken\": {\"id\": \"<s>\"}}, {\"Sequence\": {\"id\": \"A\"}}, "
                 "{\"SpecialToken\": {\"id\": \"<s>\"}}, {\"SpecialToken\": {\"id\": \"<s>\"}}, "
                 "{\"Sequence\": {\"id\": \"B\"}}, {\"SpecialToken\": {\"id\": \"<s>\"}}",
                 "7, 256");
    struct tokenizer *t = load(folder);
    check_pair(t, (int[]){7, 256}, 2, (int[]){7, 256, 7, 256}, 4, (int[]){7, 256}, 2);
    assert_int_equal(tokenizer_template(t, false).n, 0);
    assert_encodes(t, "l", 75);
    tokenizer_free(t);
    put_json(byte_level, "", "[]", "");
    t = load(folder);
    assert_int_equal(tokenizer_template(t, true).n, 0);
    tokenizer_free(t);
}

/* Without tokenizer.json, bos and eos are what tokenizer_config.json asks for; with it, its
 * template counts, as in Transformers. */
static void adds_bos_and_eos(void **state)
{
    (void)state;
    put_vocab(-1, "\"ll\": 256, \"<s>\": 257, \"<|endoftext|>\": 258", "l l\n");
    put("tokenizer_config.json",
        "{\"add_bos_token\": true, \"add_eos_token\": true, \"bos_token\": \"<s>\"}");
    struct tokenizer *t = load(folder);
    check_pair(t, (int[]){257}, 1, (int[]){258, 257}, 2, (int[]){258}, 1);
    const struct token_template one = tokenizer_template(t, false);
    check_ids(one.ids, one.n, (int[]){257, 258}, 2);
    assert_int_equal(one.before, 1);
    tokenizer_free(t);
    put_json(byte_level, "", "[]", ", \"added_tokens\": [{\"id\": 257, \"content\": \"<s>\"}]");
    t = load(folder);
    assert_int_equal(tokenizer_template(t, true).n, 0);
    tokenizer_free(t);
    put("tokenizer_config.json", "{\"add_bos_token\": 1}");
    assert_int_equal(remove_file("tokenizer.json"), 0);
    refuses("tokenizer_config.json:1: add_bos_token is 1, but it is true or false");
}

/* A byte without a token is left out, or becomes the unknown token. */
static void vocabularies_may_lack_bytes(void **state)
{
    (void)state;
    put_vocab(0x120, "\"ll\": 255", "l l\n");
    struct tokenizer *t = load(folder);
    assert_encodes(t, " ll  l ", 255, 75);
    tokenizer_free(t);
}

/* Beside ByteLevel it is for a byte whose character has no token. 0x00's is U+0100, C4 80: only
 * where both of these have one does Transformers give them. */
static void byte_fallback_may_have_nothing_to_do(void **state)
{
    (void)state;
    const char *fallback = "\"byte_fallback\": true,";
    put_json(byte_level, fallback, "[\"l l\"]", "");
    struct tokenizer *t = load(folder);
    assert_encodes(t, "ll\0", 256, 188);
    tokenizer_free(t);
    put_json_of(vocab_text(-1, "\"<0xC4>\": 256, \"<0x80>\": 257"), byte_level, fallback, "[]", "");
    t = load(folder);
    assert_encodes(t, "l\0", 75, 188);
    tokenizer_free(t);
    put_json_of(vocab_text(0x100, "\"<0xC4>\": 255"), byte_level, fallback, "[]", "");
    t = load(folder);
    assert_encodes(t, "l\0l", 75, 75);
    tokenizer_free(t);
    put_json_of(vocab_text(0x100, "\"<0xC4>\": 255, \"<0x80>\": 256"), byte_level, fallback, "[]",
                "");
    refuses(
        "tokenizer.json:2: model.byte_fallback is true, which is not supported; supported: "
        "false where there is ByteLevel and a byte's character has no token, but its own bytes");
}

static void refuses_bad_tokenizer_json(void **state)
{
    (void)state;
    put_json("{\"type\": \"Whitespace\"}", "", "[]", "");
    refuses("tokenizer.json:1: pre_tokenizer is {\"type\":\"Whitespace\"}, which is not supported; "
            "supported: null, Split, Digits, Metaspace, ByteLevel, or a Sequence");
    put_json("{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\"}, {\"type\": "
             "\"Digits\"}]}",
             "", "[]", "");
    refuses("pre_tokenizer is {\"type\":\"ByteLevel\"}, which is not supported");
    put_json("{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": "
             "{\"Regex\": \"(\"}, \"behavior\": \"Isolated\"}, {\"type\": \"ByteLevel\"}]}",
             "", "[]", "");
    refuses("the pattern \"(\" is not valid at character 1: missing closing parenthesis");
    put_json("{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Kept\"}", "",
             "[]", "");
    refuses("supported: a Split by Regex or String, Isolated, Removed");
    put_json("{\"type\": \"Metaspace\", \"replacement\": \"_\"}", "", "[]", "");
    refuses("supported: a Metaspace with replacement");
    put_json("{\"type\": \"Metaspace\", \"replacement\": \"\xE2\x96\x81\", \"prepend_scheme\": "
             "\"last\"}",
             "", "[]", "");
    refuses("prepend_scheme always, first or never");
    put_json(byte_level, "\n\"type\": \"Unigram\",", "[]", "");
    refuses("tokenizer.json:3: model.type is \"Unigram\", which is not supported; supported: BPE");
    put_json(byte_level, "\"end_of_word_suffix\": \"</w>\",", "[]", "");
    refuses("tokenizer.json:2: model.end_of_word_suffix is \"</w>\", which is not supported");
    put_json(byte_level, "", "[]", ",\n\"normalizer\": {\"type\": \"NFKC\"}");
    refuses("normalizer is {\"type\":\"NFKC\"}, which is not supported; supported: null, NFC");
    put_json(byte_level, "", "[]",
             ", \"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \"\"}, "
             "\"content\": \"\"}");
    refuses("normalizer is {\"type\":\"Replace\"");
    put_json("null", "\"unk_token\": \"<unk>\",", "[]", "");
    refuses("tokenizer.json: the unknown token \"<unk>\" is not in the vocabulary");
    put_json(byte_level, "", "[]", ", \"post_processor\": {\"type\": \"BertProcessing\"}");
    refuses("post_processor is {\"type\":\"BertProcessing\"}, which is not supported; supported: "
            "null, ByteLevel, one TemplateProcessing");
    put_template("{\"Sequence\": {\"id\": \"B\"}}, {\"Sequence\": {\"id\": \"A\"}}", "1");
    refuses("post_processor is {");
    put_template("{\"Sequence\": {\"id\": \"A\"}}", "1");
    refuses("post_processor is {");
    put_template("{\"SpecialToken\": {\"id\": \"<s>\"}}, {\"Sequence\": {\"id\": \"A\"}}, "
                 "{\"Sequence\": {\"id\": \"B\"}}",
                 "257");
    refuses("post_processor is {");
    put_json(byte_level, "", "[\"l l\",\n\"l\"]", "");
    refuses("tokenizer.json:5: the merge \"l\" is not two tokens with a space between");
    put_json(byte_level, "", "[\"l l\",\n\"l o\"]", "");
    refuses("tokenizer.json:5: a merge makes \"lo\"");
    put_json(byte_level, "", "[[\"l\", \"l\", \"l\"]]", "");
    refuses("tokenizer.json:4: found , where ']' belongs");
    put_json(byte_level, "", "{}", "");
    refuses("tokenizer.json:4: found { where '[' belongs");
    put_json(byte_level, "", "[]", ", \"added_tokens\": [{\"id\": 300, \"content\": \"<s>\"}]");
    refuses("the token \"<s>\" has the id 300");
    put_json(byte_level, "", "[]", ", \"added_tokens\": [{\"content\": \"<s>\"}]");
    refuses("the token \"<s>\" of added_tokens has no id");
    put_json(byte_level, "", "[]", ", \"added_tokens\": [{\"id\": 257}]");
    refuses("a token of added_tokens has no content");
    put("tokenizer.json", "{\"model\": {\"vocab\": {\"a\": 0}}, \"pre_tokenizer\": "
                          "{\"type\": \"ByteLevel\"}}");
    refuses("tokenizer.json: model.merges is absent, but it is a list");
    put("tokenizer.json", "{\"model\": {\n\"vocab\": {\"a\": 0");
    refuses("tokenizer.json:2: not valid JSON");
    put("tokenizer.json", "{\"model\": 5}");
    refuses("tokenizer.json");
}

static void reads_the_files_beside(void **state)
{
    (void)state;
    put_vocab(-1, "\"ll\": 256, \"</s>\": 257, \"<|endoftext|>\": 258", "l l\n");
    put("added_tokens.json", "{\"<a>\": 259, \"<b>\": 260}");
    put("special_tokens_map.json", "{\"eos_token\": {\"content\": \"</s>\"}}");
    put("tokenizer_config.json", "{\"add_prefix_space\": true, \"added_tokens_decoder\": "
                                 "{\"260\": {\"content\": \"<b>\", \"lstrip\": true}}}");
    struct tokenizer *t = load(folder);
    assert_int_equal(tokenizer_vocab_size(t), 261);
    assert_int_equal(tokenizer_eos(t), 257);
    assert_encodes(t, "ll<a> <b></s> l", 220, 256, 259, 260, 257, 220, 75);
    tokenizer_free(t);
    put("tokenizer_config.json",
        "{\"model_max_length\": 1000000000000000019884624838656, \"add_prefix_space\": true}");
    tokenizer_free(load(folder));
    put("tokenizer_config.json", "\xEF\xBB\xBF{}");
    tokenizer_free(load(folder));
    put("tokenizer_config.json", "{\"add_prefix_space\": 1}");
    refuses("tokenizer_config.json:1: add_prefix_space is 1, but it is");
    put("tokenizer_config.json", "{\"truncation_side\": \"left\"}");
    refuses(
        "tokenizer_config.json:1: truncation_side is \"left\", but it is \"right\": a sentence");
    put("tokenizer_config.json", "{\"split_special_tokens\": true}");
    refuses("split_special_tokens is true, but it is false: it is not supported");
    put("tokenizer_config.json", "{\"fix_mistral_regex\": true}");
    refuses("tokenizer_config.json:1: fix_mistral_regex is true, but it is false: it is not");
    put("tokenizer_config.json", "{\"tokenizer_class\": \"CLIPTokenizer\"}");
    refuses("tokenizer_class is \"CLIPTokenizer\", but it is GPT2Tokenizer or Qwen2Tokenizer where "
            "there is no");
    put("tokenizer_config.json", "{}");
    put("added_tokens.json", "{\"<a>\": \"x\"}");
    refuses("added_tokens.json: the id of \"<a>\" is not a whole number");
}

static void chooses_what_is_there(void **state)
{
    (void)state;
    struct zf_error err;
    refuses("there is no tokenizer: looked for tokenizer.json, vocab.json with merges.txt, "
            "tokenizer.model, spiece.model, sentencepiece.bpe.model and *.model");
    put("vocab.json", "{}");
    refuses("vocab.json is there, but not merges.txt");
    copy(FIXTURES "/spm_bpe.model", "mine.model");
    struct tokenizer *t = load(folder);
    assert_string_equal(tokenizer_kind(t), "SentencePiece");
    assert_int_equal(tokenizer_eos(t), 2);
    tokenizer_free(t);
    copy(FIXTURES "/spm_unigram.model", "other.model");
    refuses("there are 2 *.model files");
    copy(FIXTURES "/spm_unigram.model", "spiece.model");
    tokenizer_free(load(folder));
    put_vocab(-1, "\"ll\": 256", "l l\n");
    t = load(folder);
    assert_int_equal(tokenizer_vocab_size(t), 257);
    tokenizer_free(t);
    copy(FIXTURES "/split/tokenizer.json", "tokenizer.json");
    t = load(folder);
    assert_int_equal(tokenizer_vocab_size(t), 410);
    tokenizer_free(t);
    assert_null(tokenizer_load("/nonexistent", &err));
    assert_says(err, "/nonexistent: there is no such folder");
}

static void refuses_bad_sentencepiece(void **state)
{
    (void)state;
    struct zf_error err;
    char *text, *path = zf_format("%s/spiece.model", folder);
    size_t n;
    put("spiece.model", "no model");
    refuses("spiece.model: this is not a SentencePiece model");
    put("spiece.model", "");
    refuses("spiece.model: this is not a SentencePiece model");
    assert_works(file_read(FIXTURES "/spm_bpe.model", &text, &n, &err), err);
    assert_works(file_write(path, text, n / 2, &err), err);
    refuses("spiece.model: this is not a SentencePiece model");
    free(text);
    free(path);
}

/* A model that tokenizer_config.json gives to Llama's class. */
static void refuses_bad_llama_models(void **state)
{
    (void)state;
    put("tokenizer_config.json", "{\"tokenizer_class\": \"LlamaTokenizer\"}");
    put("tokenizer.model", "");
    refuses("tokenizer.model: this is not a SentencePiece model: it has no pieces");
    put("tokenizer.model", "\x0A\x04\x0A\x02"
                           "ab"
                           "\x0A\x7F");
    refuses("tokenizer.model: this is not a SentencePiece model: a field goes beyond its end");
    put("tokenizer.model", "\x0A\x03\x0A\x02"
                           "a");
    refuses("a field goes beyond its end");
    put("tokenizer.model", "\x0A\x04\x0A\x02"
                           "ab"
                           "\x0A\x02\x18\x01");
    refuses("tokenizer.model: the piece 1 has 0 bytes, but it is text of 1 to 1024");
    put("tokenizer.model", "\x0A\x04\x0A\x02"
                           "ab"
                           "\x0A\x04\x0A\x02"
                           "ab");
    refuses("tokenizer.model: the token \"ab\" has two ids, 0 and 1");
    put("tokenizer_config.json", "{\"tokenizer_class\": \"LlamaTokenizer\", \"legacy\": 1}");
    refuses("tokenizer_config.json:1: legacy is 1, but it is true or false");
    put("tokenizer_config.json", "{\"tokenizer_class\": \"LlamaTokenizer\"}");
    put("config.json", "{\"model_type\": \"mistral\"}");
    refuses("tokenizer.model: there is no tokenizer.json beside it, which a model of type mistral");
    put("config.json", "{\"model_type\": \"qwen2\"}");
    refuses("tokenizer.model: there is no tokenizer.json beside it, which a model of type qwen2");
    put("config.json", "{\"model_type\": \"llama\"}");
    put("tokenizer.model", "\x0A\x03\x0A\x01"
                           "a"
                           "\x0A\x03\x0A\x01"
                           "b"
                           "\x0A\x04\x0A\x02"
                           "ab");
    struct tokenizer *t = load(folder);
    assert_encodes(t, "abba", 2, 1, 0);
    tokenizer_free(t);
}

/* What Transformers gives then are neither Llama's ids nor the library's. */
static void refuses_sentencepiece_of_unknown_rules(void **state)
{
    (void)state;
    const char *absent = "tokenizer.model: tokenizer_class in tokenizer_config.json beside it is "
                         "absent, but it is LlamaTokenizer for Llama's rules";
    copy(FIXTURES "/spm_bpe.model", "tokenizer.model");
    put("config.json", "{\"model_type\": \"llama\"}");
    refuses(absent);
    put("tokenizer_config.json", "{\"add_bos_token\": true}");
    refuses(absent);
    remove_file("config.json");
    refuses(absent);
    put("tokenizer_config.json", "{\"tokenizer_class\": \"T5Tokenizer\"}");
    refuses("beside it is T5Tokenizer, but it is LlamaTokenizer");
    put("tokenizer_config.json", "{\"tokenizer_class\": \"BertGenerationTokenizer\"}");
    put("config.json", "{\"model_type\": \"llama\"}");
    tokenizer_free(load(folder));
    remove_file("config.json");
    remove_file("tokenizer_config.json");
    tokenizer_free(load(folder)); /* alone */
}

static void sentencepiece_takes_any_bytes(void **state)
{
    (void)state;
    copy(FIXTURES "/spm_bpe.model", "tokenizer.model");
    struct tokenizer *t = load(folder);
    int bad[32], replaced[32];
    size_t n = tokenizer_encode(t, "a\xFFz", 3, bad, 32), n_text;
    assert_int_equal(tokenizer_encode(t, "a\xEF\xBF\xBDz", 5, replaced, 32), n);
    assert_memory_equal(bad, replaced, n * sizeof *bad);
    const int ids[] = {-5, 100000, 3};
    free(tokenizer_decode(t, ids, 3, &n_text));
    tokenizer_free(t);
}

/* What one thread does: encodes the sentence over and over and notes whether the ids are right. */
struct encoder {
    pthread_t thread;
    const struct tokenizer *t;
    const int *expected;
    size_t n;
    bool ok;
};

static void *encode_many(void *argument)
{
    struct encoder *e = argument;
    int ids[64];
    e->ok = true;
    for (int i = 0; i < 2000; i++)
        e->ok = e->ok && tokenizer_encode(e->t, sentence, strlen(sentence), ids, 64) == e->n &&
                memcmp(ids, e->expected, e->n * sizeof *ids) == 0;
    return NULL;
}

static void check_threads(const struct tokenizer *t)
{
    int expected[64];
    size_t n = tokenizer_encode(t, sentence, strlen(sentence), expected, 64);
    struct encoder e[4];
    for (int i = 0; i < 4; i++) {
        e[i] = (struct encoder){.t = t, .expected = expected, .n = n};
        assert_int_equal(pthread_create(&e[i].thread, NULL, encode_many, &e[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(e[i].thread, NULL);
        assert_true(e[i].ok);
    }
}

static void encodes_from_many_threads(void **state)
{
    (void)state;
    struct tokenizer *t = load(SAMPLE);
    check_threads(t);
    tokenizer_free(t);
    copy(FIXTURES "/spm_unigram.model", "tokenizer.model");
    t = load(folder);
    check_threads(t);
    tokenizer_free(t);
}

/* A million marks behind one letter, for which a quadratic time would be twenty minutes. */
static void sorts_many_marks(void **state)
{
    (void)state;
    static const char marks[] = "\xCC\x81\xCC\xA3";
    const size_t n_pairs = 500000, n_pair = sizeof marks - 1, n = 1 + n_pairs * n_pair;
    struct tokenizer *t = load(FIXTURES "/shapes/qwen2");
    char *text = zf_malloc(n);
    *text = 'a';
    for (size_t i = 0; i < n_pairs; i++)
        memcpy(text + 1 + i * n_pair, marks, n_pair);
    int *ids = zf_malloc(n * sizeof *ids);
    size_t n_back, n_ids = tokenizer_encode(t, text, n, ids, n);
    assert_true(n_ids <= n);
    char *back = tokenizer_decode(t, ids, n_ids, &n_back);
    /* "\u1EA1", the other marks below, and those above. */
    assert_int_equal(n_back, n);
    assert_memory_equal(back, "\xE1\xBA\xA1\xCC\xA3", 5);
    assert_memory_equal(back + n - 4, "\xCC\x81\xCC\x81", 4);
    free(back);
    free(ids);
    free(text);
    tokenizer_free(t);
}

static void utf8_is_strict(void **state)
{
    (void)state;
    static const char *const bad[] = {"\x80",         "\xC0\x80",         "\xC1\xBF",
                                      "\xE0\x9F\xBF", "\xED\xA0\x80",     "\xF0\x8F\xBF\xBF",
                                      "\xF5\x80",     "\xF4\x90\x80\x80", "\xC3",
                                      "\xE2\x82",     "\xE2(\xA1",        "\xF0\x9F\x98"};
    uint32_t c;
    char text[4];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(utf8_decode(bad[i], strlen(bad[i]), &c), 0);
    for (uint32_t code = 0; code < 0x110000; code++) {
        size_t n = utf8_encode(code, text);
        bool surrogate = code >= 0xD800 && code < 0xE000;
        if (utf8_decode(text, n, &c) != (surrogate ? 0 : n) || (!surrogate && c != code))
            fail_msg("U+%04X does not come back", code);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_folder(merges_in_order),
        in_folder(encodes_any_bytes),
        in_folder(splits_at_bad_bytes_as_at_replacements),
        in_folder(decodes_only_its_ids),
        in_folder(refuses_bad_vocabularies),
        in_folder(refuses_bad_merges),
        in_folder(reads_tokenizer_json),
        in_folder(reads_templates),
        in_folder(adds_bos_and_eos),
        in_folder(vocabularies_may_lack_bytes),
        in_folder(byte_fallback_may_have_nothing_to_do),
        in_folder(refuses_bad_tokenizer_json),
        in_folder(reads_the_files_beside),
        in_folder(chooses_what_is_there),
        in_folder(refuses_bad_sentencepiece),
        in_folder(refuses_bad_llama_models),
        in_folder(refuses_sentencepiece_of_unknown_rules),
        in_folder(sentencepiece_takes_any_bytes),
        in_folder(encodes_from_many_threads),
        cmocka_unit_test(sorts_many_marks),
        cmocka_unit_test(utf8_is_strict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
