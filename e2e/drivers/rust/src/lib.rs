//! What both drivers' programs have in common.

use std::io::{stdin, Result};

/// Waits for what happens to the database in the middle: see the type driver in
/// drivers_test.go.
pub fn ready(step: &str) -> Result<String> {
    println!("ready: {step}");
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    Ok(answer.trim_end().to_owned())
}
