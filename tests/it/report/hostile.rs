//! Contents that somebody made to do harm to whoever reads them, in every field that comes from outside.

use serde_json::{Value, json};
use workcrew::attempt::OutputFile;
use workcrew::attempt::Provenance;
use workcrew::audit::report::Report;
use workcrew::chain::Hash;
use workcrew::repository::{By, CancelAnswer, Claimant, Slot, Submitted};
use workcrew::{
    AttemptReport, Charge, Lease, Message, NewJob, NewUnit, Next, Part, Progress, Repository, Role, Tokens, WorkerId,
};

use super::browser::Browser;
use super::scene::{Scene, failed};
use crate::support;

/// What markup, scripts, styles, templates and terminals have been broken with.
const TEXTS: &[&str] = &[
    "<script>window.owned = 1</script>",
    "</script><script>window.owned = 1</script>",
    "</ScRiPt ><script>window.owned = 1</script >",
    "</script\n><svg onload=owned=1>",
    "<!--<script>window.owned = 1</script>-->",
    "<!-- --!><script>window.owned = 1</script>",
    "--></script><script>window.owned = 1</script>",
    "]]><script>window.owned = 1</script>",
    "<img src=x onerror=\"window.owned = 1\">",
    "\"><img src=http://harm.invalid/x onerror=window.owned=1>",
    "' onmouseover='window.owned=1' autofocus onfocus='window.owned=1",
    "<a href=\"javascript:window.owned=1\">here</a>",
    "javascript:window.owned=1//",
    "data:text/html,<script>window.owned=1</script>",
    "<svg><script>window.owned=1</script><animate onbegin=window.owned=1></svg>",
    "<math><mtext><style><img src=x onerror=window.owned=1></style></mtext></math>",
    "<iframe srcdoc=\"<script>top.owned=1</script>\"></iframe>",
    "<object data=http://harm.invalid/></object><embed src=http://harm.invalid/>",
    "<link rel=stylesheet href=http://harm.invalid/x.css><base href=http://harm.invalid/>",
    "<meta http-equiv=refresh content=\"0;url=http://harm.invalid/\">",
    "</style><style>* { display: none !important; background: url(http://harm.invalid/) }",
    "; } body { display: none } /* */ url(http://harm.invalid/)",
    "<form action=http://harm.invalid/><input name=cookie><button>go</button></form>",
    "{{ 7 * 7 }} ${window.owned = 1} #{1} <%= 1 %> {policy} {style} {script} <!-- data -->",
    "`${window.owned = 1}`",
    "__proto__",
    "constructor",
    "line\u{2028}and\u{2029}paragraph",
    "right \u{202e}ot tfel\u{202c} \u{2066}isolated\u{2069} \u{200f}mark",
    "no\0thing \u{7} \u{8} \u{1b}[31mred\u{1b}[0m \u{7f} \u{85} \r gone",
    "zero\u{200b}width\u{feff} tags\u{e0041}\u{e007f} soft\u{ad}hyphen",
    "half of a pair: \\ud800 \\udc00 &#xd800; \u{fffd} \u{ffff}",
    "&lt;script&gt;window.owned=1&lt;/script&gt; &amp; &#60;img&#62;",
    "Z̴̡̧̛a̸l̵g̶o̷ 👩‍👩‍👧‍👦 שלום العربية",
    "../../../etc/passwd; rm -rf ~ $(touch owned) `touch owned`",
];

/// As much of a text as can be a name: without controls, and not too long.
fn named(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(120).collect()
}

/// How the page writes a text: what cannot be seen is written out.
fn visible(text: &str) -> String {
    let is_unseen = |char: char| {
        matches!(char, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{feff}')
            || ('\u{2028}'..='\u{202e}').contains(&char)
            || ('\u{2060}'..='\u{206f}').contains(&char)
            || ('\u{fff9}'..='\u{fffb}').contains(&char)
            || ('\u{e0000}'..='\u{e0fff}').contains(&char)
            || char.is_control() && char != '\n' && char != '\t'
    };
    let written = |char: char| if is_unseen(char) { format!("U+{:04X}", u32::from(char)) } else { char.to_string() };
    text.chars().map(written).collect()
}

/// Two units whose every field is this text: one that completed, one that failed and was tried to be cancelled.
fn place(scene: &Scene, number: usize, text: &str) {
    let name = named(text);
    let repository = &scene.repository;
    let job = repository.create_job(&NewJob::named(&name).settings(json!({ text: text }))).unwrap().id;
    let owner = support::owner(repository, &name);
    let claim = |unit: &NewUnit| -> Lease {
        let provenance = Provenance::of(text).model(text).program_version(text).argument(text);
        let claimant = Claimant::new(owner, std::time::Duration::from_secs(3_600)).starting(provenance);
        let slot = Slot::with_capacity(WorkerId::new(&name).unwrap(), 9);
        match repository.submit(job, unit, &claimant, &slot).unwrap() {
            Submitted::Claimed(claim) => claim.lease,
            other => panic!("{text}: {other:?}"),
        }
    };
    let mut deep = json!(text);
    for _ in 0..100 {
        deep = json!([deep]);
    }
    let unit =
        |id: String| NewUnit::new(id).prompt(text).unit_type(text).payload(json!({ text: [text], "deep": deep }));
    let everything = Message::new(Role::Assistant)
        .part(Part::text(text))
        .part(Part::thinking(text))
        .part(Part::tool_use(text, text, json!({ text: text, "deep": deep })))
        .part(Part::tool_use("alone", text, json!(text)))
        .part(Part::Image { media_type: text.to_owned(), source: format!("http://harm.invalid/{text}") })
        .part(Part::Other { kind: text.to_owned(), value: deep.clone() });
    let answer = |is_error: bool| Part::ToolResult {
        tool_use_id: text.to_owned(),
        content: vec![Part::text(text), Part::Image { media_type: text.to_owned(), source: text.to_owned() }],
        is_error,
    };
    let tokens = Tokens { input: 1, ..Tokens::default() };
    let file = OutputFile { path: text.to_owned(), size_bytes: 1, hash: Hash::of(b"x") };

    let lease = claim(&unit(name.clone()));
    let said = Role::ALL.map(|role| Message::new(role).part(Part::text(text)));
    repository.append(&lease, 0, &said).unwrap();
    let answers = Message::new(Role::Tool).part(answer(false)).part(Part::tool_error("nobody asked", text));
    repository.append(&lease, 4, &[everything, answers]).unwrap();
    repository.progress(&lease, &Progress::default().session(text)).unwrap();
    let report = AttemptReport::completed().output(format!("{text} in the end")).result(json!({ text: text }));
    repository.finish(&lease, &report.output_file(file).charge(Charge::unpriced(text, tokens))).unwrap();

    let kind: &'static str = Box::leak(text.to_owned().into_boxed_str());
    let lease = claim(&unit(format!("{number} {name}")));
    repository.append(&lease, 0, &[Message::new(Role::Tool).part(answer(true))]).unwrap();
    repository.partial(&lease, text).unwrap();
    repository.finish(&lease, &failed(kind, text, Next::GiveUp)).unwrap();
    repository.requeue(job, &format!("{number} {name}"), &By::new(text, text)).unwrap();
    let lease = claim(&unit(format!("{number} {name}")));
    let asked = repository.cancel(job, lease.unit_id.as_str(), &By::new(text, text)).unwrap();
    assert!(matches!(asked, CancelAnswer::Requested), "{asked:?}");
    repository.finish(&lease, &failed(kind, text, Next::GiveUp)).unwrap();
}

/// Whatever in the page is not ours: elements that do something, handlers, links to anywhere else.
const INTRUDERS: &str = "[...document.querySelectorAll('*')].filter((element) => {
    const name = element.localName;
    const isOurs = name !== 'script' || element === document.scripts[document.scripts.length - 1]
        || ['application/json', 'application/x-ndjson'].includes(element.type);
    const isActive = ['img', 'iframe', 'object', 'embed', 'link', 'base', 'form', 'math', 'animate', 'frame', 'portal', 'template', 'audio', 'video'].includes(name);
    const isHandled = [...element.attributes].some(({ name, value }) => name.startsWith('on') || /^\\s*(javascript|data|https?):/i.test(value));
    const leads = element.getAttribute('href');
    return !isOurs || isActive || isHandled || (leads !== null && !/^#(unit=|units$)/.test(leads));
}).map((element) => element.outerHTML.slice(0, 200))";

#[test]
fn hostile_content_in_every_field_is_text_and_nothing_else() {
    let Some(mut browser) = Browser::start() else { return };
    let scene = Scene::new("empty");
    for (number, text) in TEXTS.iter().enumerate() {
        place(&scene, number, text);
    }
    let (path, written) = scene.write(&Report::new().title(TEXTS.concat()));
    assert!(written.is_complete(), "{written:?}");
    // All rows are in sight.
    browser.size(1_280, 12_000);
    browser.open(&path, "");
    assert_eq!(browser.eval("document.title"), format!("{} – workcrew report", titled(&TEXTS.concat())));
    assert_eq!(browser.text("#title"), visible(&TEXTS.concat()));
    let globals_before = browser.eval("Object.keys(window).length");
    assert_eq!(browser.count("tr.unit"), 2 * TEXTS.len() as u64);

    for (number, text) in TEXTS.iter().enumerate() {
        let name = named(text);
        for id in [name.clone(), format!("{number} {name}")] {
            // By a click on its own row, so the link that the page made is used too.
            let find = format!(
                "[...document.querySelectorAll('.unit-id')].find((link) => link.textContent === {})",
                json!(visible(&id))
            );
            browser.eval(&format!("{find}.click()"));
            browser.until(&format!(
                "document.querySelector('#reader').open && document.querySelector('#reader-title').textContent === {}",
                json!(visible(&id))
            ));
            // What is unfolded may hold more that is folded.
            browser.eval("(() => { for (let round = 0; round < 3; round++) document.querySelectorAll('details').forEach((details) => { details.open = true; }); })()");
            browser.until(
                "[...document.querySelectorAll('details > .folded')].every((inner) => inner.childNodes.length > 0)",
            );
            let texts = browser.eval("[...document.querySelectorAll('#reader .text')].map((text) => text.textContent)");
            let texts: Vec<String> = serde_json::from_value(texts).unwrap();
            assert!(texts.contains(&visible(text)), "{text:?}: {texts:?}");
            let body = browser.text("#reader-body");
            assert!(body.matches(&visible(text)).count() >= 10, "{text:?} is shown as text: {body}");
            assert_eq!(browser.eval(INTRUDERS), json!([]), "{text:?}");
            browser.press("Escape");
            browser.until("!document.querySelector('#reader').open");
        }
    }
    assert_eq!(browser.eval("'owned' in window"), false);
    assert_eq!(browser.eval("Object.keys(window).length"), globals_before);
    assert_eq!(browser.troubles(), Vec::<String>::new());
}

/// As [`visible`], in a title, where the browser makes one blank of several.
fn titled(text: &str) -> String {
    let marked: String = text
        .chars()
        .map(|char| {
            let shown = visible(&char.to_string());
            if shown == char.to_string() { shown } else { format!("[{shown}]") }
        })
        .collect();
    marked.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_hostile_link_opens_nothing_and_is_shown_as_text() {
    let Some(mut browser) = Browser::start() else { return };
    let scene = Scene::new("job");
    let (path, _) = scene.write(&Report::new());
    let harm = "%3Cimg%20src%3Dx%20onerror%3Downed%3D1%3E";
    for fragment in
        [format!("#unit={harm}/{harm}"), "#unit=__proto__/constructor".to_owned(), format!("#{harm}"), "#unit=".into()]
    {
        browser.open(&path, &fragment);
        assert_eq!(browser.eval(INTRUDERS), json!([]), "{fragment}");
        assert_eq!(browser.eval("[document.querySelector('#reader').open, 'owned' in window]"), json!([false, false]));
    }
    browser.open(&path, &format!("#unit={harm}/{harm}%27%3B%20x"));
    let notice = browser.text("#notices");
    assert!(notice.contains("workcrew show '<img src=x onerror=owned=1>'\\''; x'"), "{notice}");
    assert_eq!(browser.troubles(), Vec::<String>::new());
}

#[test]
fn should_markup_get_in_all_the_same_the_policy_lets_it_do_nothing() {
    let Some(mut browser) = Browser::start() else { return };
    let scene = Scene::new("job");
    let (path, _) = scene.write(&Report::new());
    let page = std::fs::read_to_string(&path).unwrap();
    let harm = "<script>window.owned = 1</script><img src=http://harm.invalid/x onerror='window.owned = 2'><svg onload='window.owned=3'></svg>
        <style>main { display: none }</style><p style='color: red' id=styled>x</p><link rel=stylesheet href=http://harm.invalid/x.css>";
    std::fs::write(&path, page.replace("<main>", &format!("<main>{harm}"))).unwrap();
    browser.open(&path, "");
    assert_eq!(browser.eval("'owned' in window"), false);
    assert_ne!(browser.eval("getComputedStyle(document.querySelector('main')).display"), Value::from("none"));
    assert_ne!(
        browser.eval("getComputedStyle(document.querySelector('#styled')).color"),
        Value::from("rgb(255, 0, 0)")
    );
    let troubles = browser.troubles();
    assert!(troubles.iter().any(|trouble| trouble.contains("Content Security Policy")), "{troubles:?}");
    assert!(troubles.iter().any(|trouble| trouble.contains("harm.invalid")), "it has tried: {troubles:?}");
    assert_eq!(browser.sent(), Vec::<String>::new(), "nothing goes out");
}
