//! What templates give, and how they fail: also those that nobody in their right mind would write.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{LENGTH_LIMIT_BYTES, Prompt, PromptError, render};

fn rendered(template: &str, payload: Value) -> String {
    render(template, &payload).unwrap()
}

/// What went wrong with a payload of a few fields.
fn error_of(template: &str) -> PromptError {
    render(template, &json!({ "x": 1, "text": "a", "author": { "name": "Jane" }, "list": [1, 2] })).unwrap_err()
}

/// Which name was missing.
fn missing(template: &str) -> String {
    match error_of(template) {
        PromptError::Missing { name, .. } => name,
        other => panic!("{template}: {other:?}"),
    }
}

#[test]
fn a_prompt_is_made_from_any_text() {
    for prompt in
        [Prompt::from("a {{ b }}"), Prompt::from("a {{ b }}".to_owned()), Prompt::from(&"a {{ b }}".to_owned())]
    {
        assert_eq!(prompt, Prompt::Text("a {{ b }}".to_owned()));
    }
}

#[test]
fn a_text_without_tags_comes_out_as_it_went_in() {
    for text in ["", "\n", "a\r\n\r\n", "{\"a\": {\"b\": 1}}", "} }} %} #}", "{ { x } }", "# a\n## b\n", "\u{feff}é\0"]
    {
        assert_eq!(rendered(text, json!({ "a": 1 })), text);
    }
}

#[test]
fn a_text_around_tags_is_kept_with_all_its_line_ends() {
    let template = "\r\n  {\"a\": {\"b\": [{{ x }}]}}\t\n\n";
    assert_eq!(rendered(template, json!({ "x": 1 })), "\r\n  {\"a\": {\"b\": [1]}}\t\n\n");
}

#[test]
fn nothing_is_escaped_and_nothing_is_rendered_twice() {
    let payload = json!({ "x": "<b>'\"&{{ y }}{% raw %}", "y": "secret" });
    assert_eq!(rendered("{{ x }}|{{ x ~ '!' }}", payload), "<b>'\"&{{ y }}{% raw %}|<b>'\"&{{ y }}{% raw %}!");
}

#[test]
fn what_is_no_text_is_put_in_as_json() {
    let payload = json!({
        "whole": 1, "large": u64::MAX, "least": i64::MIN, "float": 1.5, "round": 2.0, "tiny": 1e-300, "yes": true, "no": false,
        "null": null, "list": [1, "a<'", null], "object": { "b": [true], "a": { "ü": "\"" } }, "none": [], "empty": {},
    });
    for (name, text) in [
        ("whole", "1"),
        ("large", "18446744073709551615"),
        ("least", "-9223372036854775808"),
        ("float", "1.5"),
        ("round", "2.0"),
        ("tiny", "1e-300"),
        ("yes", "true"),
        ("no", "false"),
        ("null", "null"),
        ("list", r#"[1,"a<'",null]"#),
        ("object", r#"{"a":{"ü":"\""},"b":[true]}"#),
        ("payload.none", "[]"),
        ("empty", "{}"),
        ("range(3)", "[0,1,2]"),
        ("x is defined", "false"),
    ] {
        assert_eq!(rendered(&format!("{{{{ {name} }}}}"), payload.clone()), text, "{name}");
    }
}

#[test]
fn json_can_be_asked_for_and_is_not_made_fit_for_html() {
    let payload = json!({ "x": { "b": "<a href='x'>&", "a": [1, 2.0] } });
    assert_eq!(rendered("{{ x | tojson }}", payload.clone()), r#"{"a":[1,2.0],"b":"<a href='x'>&"}"#);
    assert_eq!(rendered("{{ x.b | tojson }}", payload.clone()), r#""<a href='x'>&""#);
    assert_eq!(rendered("{{ x.a | tojson(indent=2) }}", payload.clone()), "[\n  1,\n  2.0\n]");
    let pretty = serde_json::to_string_pretty(&payload).unwrap();
    assert_eq!(rendered("{{ payload | tojson(indent=2) }}", payload), pretty);
}

#[test]
fn the_whole_payload_is_there_unless_a_field_has_its_name() {
    assert_eq!(rendered("{{ payload.a }}", json!({ "a": 1 })), "1");
    assert_eq!(rendered("{{ payload }}", json!({ "payload": "mine" })), "mine");
    assert_eq!(rendered("{{ payload[1] }} of {{ payload | length }}", json!(["a", "b"])), "b of 2");
    assert_eq!(rendered("{{ payload }}", json!("text")), "text");
    assert_eq!(rendered("{{ payload }}", Value::Null), "null");
}

#[test]
fn fields_may_have_any_name() {
    let payload = json!({ "due date": 1, "größe": 2, "": 3, "a-b": 4, "{{ x }}": 5, "range": 6, "名前": 7, "if": 8 });
    let template = "{{ payload['due date'] }}{{ größe }}{{ payload[''] }}{{ payload['a-b'] }}{{ payload['{{ x }}'] }}\
                    {{ range }}{{ 名前 }}{{ payload.if }}";
    assert_eq!(rendered(template, payload), "12345678");
}

#[test]
fn what_is_missing_is_named() {
    for (template, name) in [
        ("{{ title }}", "title"),
        ("{{ größe }}", "größe"),
        ("{{ author.age }}", "author.age"),
        ("{{ author.home.street }}", "author.home"),
        ("{{ author['age'] }}", "author['age']"),
        ("{{ list[7] }}", "list[7]"),
        ("{{ payload.title }}", "payload.title"),
        ("{% for a in title %}{% endfor %}", "title"),
        ("{% if title %}{% endif %}", "title"),
        ("{% if not author.age %}{% endif %}", "author.age"),
        ("{{ title + 1 }}", "title"),
        ("{{ 'a' ~ title }}", "title"),
        ("{{ title | upper }}", "title"),
        ("{{ title == 1 }}", "title"),
        ("{% set a = title %}\n{{ a }}", "title"),
        ("{{ [x, title] }}", "[x, title]"),
    ] {
        assert_eq!(missing(template), name, "{template}");
    }
    let error = error_of("a\nb\n{{ title }}");
    assert_eq!(error, PromptError::Missing { name: "title".to_owned(), line: 3 });
    assert_eq!(error.to_string(), "the template needs `title`, which the payload does not have");
}

#[test]
fn what_may_be_missing_can_be_asked_for() {
    let template = "{% if x is defined %}x{% else %}-{% endif %}{{ x | default('d') }}{{ a.b | default(1) }}";
    assert_eq!(rendered(template, json!({ "a": {} })), "-d1");
    assert_eq!(rendered("{{ x if false }}", json!({ "x": 1 })), "");
}

#[test]
fn a_syntax_error_names_its_line() {
    for (template, line) in [
        ("{{ 1 + }}", 1),
        ("a\n{% if %}", 2),
        ("\n\n{{ x", 3),
        ("{% endif %}", 1),
        ("\n{% if x %}\n", 2),
        ("{# open", 1),
        ("{% raw %}\n{{ x }}", 2),
        ("{#\n#}\n{% raw %}\n{% x %}\n{% endraw %}\n{% nonsense %}", 6),
    ] {
        match error_of(template) {
            PromptError::Syntax { line: found, .. } => assert_eq!(found, line, "{template}"),
            other => panic!("{template}: {other:?}"),
        }
    }
    let message = error_of("a\n{% nonsense %}").to_string();
    assert_eq!(message, "line 2 of the template is not well written: prompts have no tag `nonsense` here");
}

#[test]
fn prompts_include_nothing_and_define_no_macros() {
    for tag in [
        "include 'a'",
        "import 'a' as a",
        "from 'a' import b",
        "extends 'a'",
        "block a",
        "macro m(n)",
        "call m()",
        "autoescape true",
        "-include 'a'",
        "for a in [[1]] recursive",
        "do x",
        "break",
    ] {
        let template = format!("{{% {tag} %}}").replace("{% -", "{%- ");
        assert!(matches!(error_of(&template), PromptError::Syntax { line: 1, .. }), "{template}");
    }
}

#[test]
fn a_template_that_does_not_fit_the_payload_fails_on_its_line() {
    for template in
        ["\n{{ x + text }}", "\n{{ text | nothing }}", "\n{{ x is nothing }}", "\n{{ nothing() }}", "\n{{ 1 / 0 }}"]
    {
        assert!(matches!(error_of(template), PromptError::Failed { line: 2, .. }), "{template}");
    }
}

#[test]
fn the_tags_within_raw_text_comments_and_strings_are_none() {
    let template = "{% raw %}{{ x }} {% include 'a' %}{% endraw %}{# {% include 'a' %} #}{{ '%} }} {% include %}' }}";
    assert_eq!(rendered(template, json!({})), "{{ x }} {% include 'a' %}%} }} {% include %}");
    assert_eq!(rendered("{{ {'a': {'b': 1}}['a']['b'] }}{{ \"\\\"}}\" }}", json!({})), "1\"}}");
}

#[test]
fn lines_are_indented_but_not_beyond_reason() {
    assert_eq!(rendered("{{ x | indent(2) }}", json!({ "x": "a\nb\n\nc" })), "a\n  b\n\n  c");
    assert!(matches!(error_of("{{ text | indent(10000000000) }}"), PromptError::Failed { .. }));
}

#[test]
fn a_loop_ends() {
    let nested = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}";
    assert_eq!(error_of(nested), PromptError::TooManySteps);
    assert!(matches!(error_of("{% for i in range(100000000000) %}{% endfor %}"), PromptError::Failed { .. }));
}

#[test]
fn a_prompt_has_a_longest_length() {
    let text = "x".repeat(LENGTH_LIMIT_BYTES / 16);
    let payload = json!({ "text": text });
    assert_eq!(rendered("{% for i in range(16) %}{{ text }}{% endfor %}", payload.clone()).len(), LENGTH_LIMIT_BYTES);
    assert_eq!(render("{% for i in range(16) %}{{ text }}{% endfor %}.", &payload), Err(PromptError::TooLong));
    assert_eq!(render("{{ [text] * 1000000 }}", &payload), Err(PromptError::TooLong));
}

/// Enough to overflow any stack, if each of them takes a frame.
const MANY: usize = 100_000;

#[test]
fn what_is_nested_without_end_is_refused() {
    let many = |text: &str| text.repeat(MANY);
    for template in [
        format!("{{{{ {}1{} }}}}", many("("), many(")")),
        format!("{{{{ {}1{} }}}}", many("["), many("]")),
        format!("{{{{ {}1{} }}}}", many("{1:"), many("}")),
        format!("{{{{ {} }}}}", many("(")),
        format!("{}{}", many("{% if x %}"), many("{% endif %}")),
        format!("{}{}", many("{% for a in [1] %}"), many("{% endfor %}")),
        format!("{}{}", many("{% with a = 1 %}"), many("{% endwith %}")),
        format!("{}{}", many("{% set a %}"), many("{% endset %}")),
        format!("{}{}", many("{% filter upper %}"), many("{% endfilter %}")),
        format!("{{% if x %}}{}{{% endif %}}", many("{% elif x %}")),
        format!("{{% set a = 1 %}}{}", many("{% set a = [a] %}")),
        format!("{{% for {}a{} in list %}}{{% endfor %}}", many("("), many(")")),
        format!("{{% filter upper{} %}}{{% endfilter %}}", many("|upper")),
    ] {
        assert!(matches!(error_of(&template), PromptError::TooNested { .. }), "{}", &template[..40]);
    }
    for chain in [
        "+x",
        "~x",
        "**x",
        " and x",
        " or x",
        ".a",
        "[0]",
        "()",
        "|upper",
        " is defined",
        " if x else x",
        " not in x",
        "//x",
    ] {
        assert!(matches!(error_of(&format!("{{{{ x{} }}}}", many(chain))), PromptError::TooNested { .. }), "{chain}");
    }
    for prefix in ["-", "not ", "- "] {
        assert!(matches!(error_of(&format!("{{{{ {}x }}}}", many(prefix))), PromptError::TooNested { .. }), "{prefix}");
    }
}

#[test]
fn what_is_as_deep_as_allowed_fits_a_stack() {
    // All that adds up, at once: blocks, branches, brackets and a chain.
    let template = format!(
        "{}{{% if false %}}{}{{% else %}}{{{{ {}x{}{} }}}}{{% endif %}}{}",
        "{% if true %}".repeat(70),
        "{% elif false %}".repeat(249),
        "(".repeat(4),
        "+x".repeat(115),
        ")".repeat(4),
        "{% endif %}".repeat(70)
    );
    assert_eq!(rendered(&template, json!({ "x": 1 })), "116");
    let template = format!("{{% set a = 1 %}}{}{{{{ a }}}}", "{% set a = [[[[a]]]] %}".repeat(40));
    assert_eq!(rendered(&template, json!({})), format!("{}1{}", "[".repeat(160), "]".repeat(160)));
    assert_eq!(rendered(&"{{ x }}".repeat(5_000), json!({ "x": 1 })).len(), 5_000);
}

#[test]
fn a_payload_nested_too_deep_is_refused() {
    let mut payload = json!({ "a": 1 });
    for _ in 0..1_000 {
        payload = json!({ "a": payload });
    }
    let error = render("{{ a }}", &payload).unwrap_err();
    assert!(matches!(error, PromptError::PayloadTooDeep(_)));
    assert!(std::error::Error::source(&error).is_some());
}

#[test]
fn functions_that_eat_memory_or_tell_everything_are_not_there() {
    for template in [
        "{{ namespace() }}",
        "{{ debug() }}",
        "{{ '%9d' | format(1) }}",
        "{{ list | batch(9) }}",
        "{{ list | slice(9) }}",
    ] {
        assert!(matches!(error_of(template), PromptError::Failed { .. }), "{template}");
    }
}

/// Pieces of templates, from which chance makes others.
const PIECES: [&str; 44] = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "#}",
    "{%-",
    "-%}",
    "{{-",
    "-}}",
    " if ",
    " else ",
    " elif ",
    " endif ",
    " for ",
    " in ",
    " endfor ",
    " set ",
    " endset ",
    " raw ",
    " endraw ",
    " with ",
    " endwith ",
    " filter ",
    " endfilter ",
    " x ",
    "list",
    "=",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    ".",
    "|",
    "'",
    "\"",
    "\\",
    "1",
    "-",
    "ü\n",
];

proptest! {
    #[test]
    fn whatever_a_template_holds_it_is_rendered_or_refused(pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 0..60)) {
        let template = pieces.concat();
        let payload = json!({ "x": "a", "list": [1, null, { "x": 2.5 }] });
        if let Err(error) = render(&template, &payload) {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}
