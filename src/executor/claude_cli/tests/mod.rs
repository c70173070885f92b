//! That every run of the real program is understood, and nothing that it may print does harm.

mod arguments;
mod captures;
mod hostile;
mod rules;

use serde_json::json;

use super::*;
use crate::executor::agent_cli::replay::{Capture, Played};
use crate::executor::scene::Scene;
use crate::unit::NewUnit;

const PROMPT: &str = "What is the answer?";

/// A first attempt.
fn scene() -> Scene {
    Scene::of(NewUnit::new("a"), PROMPT)
}

/// An attempt that carries on a session of an earlier one.
fn resumed(session: &str) -> Scene {
    let mut scene = scene();
    scene.claim.resume_session = Some(session.to_owned());
    scene
}

fn with_schema() -> ClaudeCli {
    ClaudeCli::new().json_schema(json!({ "type": "object" }))
}

fn play(executor: &ClaudeCli, scene: &Scene, capture: &Capture) -> Played {
    Played::of(executor.reader(&scene.call()), scene, &capture.lines, &capture.exit)
}

fn played(name: &str) -> (Scene, Played) {
    let scene = scene();
    let played = play(&ClaudeCli::new(), &scene, &Capture::of(name));
    (scene, played)
}
