//! A real browser, driven through the pipe that it offers for that: messages of JSON, each ended by a NUL.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// How long anything may take; a machine that is busy with other tests is slow.
const LIMIT: Duration = Duration::from_secs(120);

/// Where the browser is.
fn chromium() -> Option<PathBuf> {
    let given = std::env::var_os("WORKCREW_CHROMIUM").map(PathBuf::from);
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let named = |folder: PathBuf| ["chromium", "chromium-browser", "google-chrome"].map(|name| folder.join(name));
    given.into_iter().chain(std::env::split_paths(&folders).flat_map(named)).find(|path| path.exists())
}

/// A browser without a window, and the one page that is open in it.
pub(crate) struct Browser {
    child: Child,
    to: Option<ChildStdin>,
    from: Receiver<Value>,
    /// Names the page in every message.
    session: Option<String>,
    calls: u64,
    /// What was told unasked.
    events: Vec<Value>,
    _profile: TempDir,
}

impl Browser {
    /// Starts it. Where there is none it says so, and the caller does nothing; but where everything is to be tested that is an error.
    pub(crate) fn start() -> Option<Browser> {
        let Some(program) = chromium() else {
            assert!(std::env::var_os("CI").is_none(), "there is no Chromium, without which nobody sees a report");
            // Not by a macro, whose output the harness would keep for itself.
            let _ = writeln!(std::io::stderr(), "Chromium is not installed: nobody has looked at the report");
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        // The browser wants its pipes as the descriptors 3 and 4: a shell puts them there.
        let mut child = Command::new("sh")
            .args(["-c", "exec 3<&0 4>&1 </dev/null >/dev/null; exec \"$@\"", "sh"])
            .arg(program)
            .args(["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
            .args(["--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-sync"])
            .args(["--disable-component-update", "--disable-dev-shm-usage", "--window-size=1280,900"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take(), listen(child.stdout.take().unwrap()));
        let mut browser = Browser { child, to, from, session: None, calls: 0, events: Vec::new(), _profile: profile };
        browser.attach();
        Some(browser)
    }

    fn attach(&mut self) {
        let target = self.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = self.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        self.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
        self.size(1_280, 900);
    }

    /// Calls a method, and gives its result.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.try_call(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Calls a method, and gives its result or its error.
    fn try_call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&message).unwrap();
        bytes.push(0);
        self.to.as_mut().unwrap().write_all(&bytes).unwrap();
        let until = Instant::now() + LIMIT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let told = self.from.recv_timeout(left).unwrap_or_else(|error| panic!("{method}: no answer: {error}"));
            if told["id"] != self.calls {
                self.events.push(told);
                continue;
            }
            return match told.get("error") {
                Some(error) => Err(error.clone()),
                None => Ok(told["result"].clone()),
            };
        }
    }

    /// Opens a page from disk, and waits until its script has done its first work.
    pub(crate) fn open(&mut self, path: &Path, fragment: &str) {
        self.go_to(path, fragment);
        self.until("'isReady' in document.documentElement.dataset");
    }

    /// Opens a page from disk, without waiting for it.
    pub(crate) fn go_to(&mut self, path: &Path, fragment: &str) {
        // By way of an empty one: another fragment alone would not load it anew.
        self.call("Page.navigate", json!({ "url": "about:blank" }));
        let url = format!("file://{}{fragment}", path.display());
        let answer = self.call("Page.navigate", json!({ "url": url }));
        assert!(answer.get("errorText").is_none(), "{answer}");
    }

    /// What an expression is in the page.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", params);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    pub(crate) fn text(&mut self, selector: &str) -> String {
        let text = self.eval(&format!("document.querySelector({})?.textContent", json!(selector)));
        text.as_str().unwrap_or_else(|| panic!("there is no {selector}")).to_owned()
    }

    pub(crate) fn count(&mut self, selector: &str) -> u64 {
        self.eval(&format!("document.querySelectorAll({}).length", json!(selector))).as_u64().unwrap()
    }

    /// Waits until an expression is true, and tells how many milliseconds after the page was asked for that was.
    pub(crate) fn until(&mut self, expression: &str) -> f64 {
        // It is asked in the page, so that nobody here has to sleep.
        let look = format!(
            "new Promise((seen) => {{ const until = performance.now() + 20000; const look = () => {{
                let is; try {{ is = ({expression}); }} catch {{ is = false; }}
                const now = performance.now();
                if (is || now > until) seen(is ? now : false); else setTimeout(look, 1); }}; look(); }})"
        );
        let params = json!({ "expression": look, "awaitPromise": true, "returnByValue": true });
        let until = Instant::now() + LIMIT;
        // A page that is being replaced gives no answer, or an error: then the next one is asked.
        while Instant::now() < until {
            let value =
                self.try_call("Runtime.evaluate", params.clone()).map(|answer| answer["result"]["value"].clone());
            match value {
                Ok(Value::Number(at_ms)) => return at_ms.as_f64().unwrap(),
                Ok(Value::Bool(_)) => break,
                _ => {}
            }
        }
        panic!("it never came to be that {expression}: {:?}", self.troubles());
    }

    /// Clicks into the middle of an element, where nothing else may lie over it.
    pub(crate) fn click(&mut self, selector: &str) {
        let place = self.eval(&format!(
            "(() => {{ const element = document.querySelector({}); if (!element) return null;
                element.scrollIntoView({{ block: 'nearest' }});
                const box = element.getBoundingClientRect();
                const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
                const there = document.elementFromPoint(x, y);
                return element.contains(there) ? [x, y] : `covered by ${{there?.outerHTML.slice(0, 200)}}`; }})()",
            json!(selector)
        ));
        let place: Vec<f64> =
            serde_json::from_value(place.clone()).unwrap_or_else(|_| panic!("{selector} cannot be clicked: {place}"));
        for kind in ["mousePressed", "mouseReleased"] {
            let params = json!({ "type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", params);
        }
    }

    /// Types into whatever has the focus.
    pub(crate) fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Presses a key that has a name, such as `Escape`.
    pub(crate) fn press(&mut self, key: &str) {
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "Tab" => 9,
            other => panic!("no code for {other}"),
        };
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let params = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text });
            self.call("Input.dispatchKeyEvent", params);
        }
    }

    /// Chooses the option of a list that begins like this, as a keyboard would.
    pub(crate) fn choose(&mut self, selector: &str, start: &str) {
        self.eval(&format!(
            "(() => {{ const select = document.querySelector({});
                select.value = [...select.options].find((option) => option.textContent.startsWith({})).value;
                select.dispatchEvent(new Event('change', {{ bubbles: true }})); }})()",
            json!(selector),
            json!(start)
        ));
    }

    /// How large the window is.
    pub(crate) fn size(&mut self, width: u32, height: u32) {
        let params = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", params);
    }

    /// What the system says of colours: `light` or `dark`.
    pub(crate) fn scheme(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// What one sees, as a file; its type is that of its name.
    pub(crate) fn picture(&mut self, path: &Path) {
        let format = path.extension().and_then(|extension| extension.to_str()).unwrap();
        let mut params = json!({ "format": format });
        if format != "png" {
            params["quality"] = json!(82);
        }
        let answer = self.call("Page.captureScreenshot", params);
        std::fs::write(path, bytes_of_base64(answer["data"].as_str().unwrap())).unwrap();
    }

    /// What was asked for elsewhere, and not held back by the page's policy.
    pub(crate) fn sent(&mut self) -> Vec<String> {
        self.call("Runtime.evaluate", json!({ "expression": "1" }));
        let params = |method: &str| {
            let events: Vec<Value> = self.events.iter().filter(|event| event["method"] == method).cloned().collect();
            events.into_iter().map(|event| event["params"].clone())
        };
        let failed = params("Network.loadingFailed").filter(|failed| failed["blockedReason"] == "csp");
        let blocked: Vec<Value> = failed.map(|failed| failed["requestId"].clone()).collect();
        let asked = params("Network.requestWillBeSent").filter(|request| !blocked.contains(&request["requestId"]));
        let urls = asked.filter_map(|request| Some(request["request"]["url"].as_str()?.to_owned()));
        urls.filter(|url| !url.starts_with("file:///")).collect()
    }

    /// Everything that must not happen: errors, violations of the policy, dialogs, requests for anything but pages from disk, other pages.
    pub(crate) fn troubles(&mut self) -> Vec<String> {
        // Whatever the page has begun is heard of by then.
        self.call("Runtime.evaluate", json!({ "expression": "1" }));
        let session = self.session.take();
        let targets = self.call("Target.getTargets", json!({}))["targetInfos"].clone();
        self.session = session;
        let pages = targets.as_array().unwrap().iter().filter(|target| target["type"] == "page").count();
        let mut troubles: Vec<String> = self.events.iter().filter_map(trouble).collect();
        // The first one is the window that the browser opens by itself.
        if pages > 2 {
            troubles.push(format!("{pages} pages are open: {targets}"));
        }
        troubles
    }
}

/// What is bad about an event.
fn trouble(event: &Value) -> Option<String> {
    let params = &event["params"];
    let is_bad = match event["method"].as_str()? {
        "Runtime.exceptionThrown" | "Log.entryAdded" | "Runtime.consoleAPICalled" | "Page.javascriptDialogOpening" => {
            true
        }
        "Network.requestWillBeSent" => {
            let url = params["request"]["url"].as_str().unwrap_or_default();
            params["type"] != "Document" || !url.starts_with("file:///")
        }
        "Page.windowOpen" | "Page.downloadWillBegin" | "Network.webSocketCreated" => true,
        _ => false,
    };
    is_bad.then(|| event.to_string().chars().take(600).collect())
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Without its pipe it ends, but it need not do so in order: nothing of it is wanted any more.
        self.to = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads what the browser says, on a thread of its own that ends with it.
fn listen(from: ChildStdout) -> Receiver<Value> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut message = Vec::new();
        while from.read_until(0, &mut message).is_ok_and(|count| count > 0) {
            message.pop();
            let Ok(value) = serde_json::from_slice(&message) else { break };
            if sender.send(value).is_err() {
                break;
            }
            message.clear();
        }
    });
    receiver
}

fn bytes_of_base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|&byte| byte != b'=').map(digit).collect();
    let group = |group: &[u8]| {
        let bits = group.iter().fold(0_u32, |bits, &digit| bits << 6 | u32::from(digit)) << (6 * (4 - group.len()));
        bits.to_be_bytes()[1..group.len()].to_vec()
    };
    digits.chunks(4).flat_map(group).collect()
}
