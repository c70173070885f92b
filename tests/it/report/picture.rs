//! The pictures of a report in the documentation: `.ci/report-picture` makes them.

use std::path::PathBuf;
use std::process::Command;

use super::browser::Browser;
use crate::{examples, support};

#[test]
#[ignore = "it makes the pictures anew, which is done by .ci/report-picture"]
fn the_pictures_are_made_anew() {
    let target = PathBuf::from(std::env::var_os("WORKCREW_PICTURES").expect("WORKCREW_PICTURES says where to"));
    let folder = support::folder();
    let mut example: Command = examples::example("report", folder.path());
    examples::printed(&mut example);
    let page = folder.path().join("report.html");
    let mut browser = Browser::start().expect("a browser");
    for scheme in ["light", "dark"] {
        browser.scheme(scheme);
        let mut take = |name: &str, fragment: &str, width, height, format: &str| {
            browser.size(width, height);
            browser.open(&page, fragment);
            // It slides in.
            browser.eval("Promise.all(document.getAnimations().map((animation) => animation.finished)).then(() => 1)");
            browser.picture(&target.join(format!("{name}-{scheme}.{format}")));
        };
        take("report", "", 1_280, 1_180, "webp");
        // Only to be looked at while one works on the page.
        if std::env::var_os("WORKCREW_ALL_PICTURES").is_some() {
            let unit = "#unit=The%20Voyage%20of%20the%20Beagle/page-044";
            take("whole", "", 1_280, 1_700, "png");
            take("unit", unit, 1_280, 1_200, "png");
            take("phone", "", 390, 1_700, "png");
            take("phone-unit", unit, 390, 1_400, "png");
        }
    }
}
