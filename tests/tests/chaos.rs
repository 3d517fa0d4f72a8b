//! Faults of all kinds, drawn from a fixed seed: each is named rightly, ends as its kind does, and leaves no trace.

use lockstep_e2e::{Dice, Service};

const FAULTS: usize = 30;
const SEED: u64 = 5;

#[tokio::test]
async fn thirty_drawn_faults_end_as_they_should() -> anyhow::Result<()> {
    let mut service = Service::start_for_faults().await?;
    let references = service.undisturbed().await?;
    let mut dice = Dice::new(SEED);
    let mut wrong = Vec::new();
    for _ in 0..FAULTS {
        let outcome = service.disturbed(dice.draw(), &references).await?;
        if !outcome.wrong.is_empty() {
            wrong.push(outcome);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}
