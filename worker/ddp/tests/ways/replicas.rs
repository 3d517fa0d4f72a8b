//! Ranks whose weights differ find out, and where.

use lockstep_ddp::{Divergence, Votes, of_floats};

use crate::ranks::{ARRANGEMENTS, config, do_grains, layout, on_ranks};

fn compare(nodes: &[usize], flipped: Option<usize>) -> Vec<(Vec<usize>, Option<Divergence>)> {
    on_ranks(nodes, &config(), |reducer| {
        let mut weights = vec![0.5_f32; layout().len()];
        let param =
            layout().params().iter().find(|it| it.name == "first.weight").unwrap().range.clone();
        if flipped == Some(reducer.rank()) {
            let weight = &mut weights[param.start + 700];
            *weight = f32::from_bits(weight.to_bits() ^ 1);
        }
        let grains = reducer.begin_step(0, 3);
        do_grains(reducer, 0, grains);
        let votes = Votes { weights_digest: of_floats(&weights), ..Votes::default() };
        let outcome = reducer.finish_step(votes).unwrap();
        (outcome.diverged_ranks, reducer.divergence(&weights).unwrap())
    })
}

#[test]
fn one_flipped_bit_is_found_with_rank_bucket_and_parameter() {
    let range =
        layout().params().iter().find(|it| it.name == "first.weight").unwrap().range.clone();
    for nodes in ARRANGEMENTS {
        assert!(
            compare(nodes, None).iter().all(|(ranks, found)| ranks.is_empty() && found.is_none())
        );
        for (ranks, divergence) in compare(nodes, Some(2)) {
            assert_eq!(ranks, [2], "{nodes:?}");
            let divergence = divergence.unwrap();
            assert_eq!(divergence.ranks, [2]);
            assert_eq!(divergence.params, ("first.weight".to_owned(), "first.weight".to_owned()));
            assert_eq!(divergence.range, range);
        }
    }
}

#[test]
fn of_two_ranks_the_higher_is_said_to_differ() {
    for flipped in 0..2 {
        let found = compare(&[1, 1], Some(flipped));
        assert!(found.iter().all(|(ranks, _)| *ranks == [1]));
        let ranks = |found: &Option<Divergence>| found.as_ref().unwrap().ranks.clone();
        assert!(found.iter().all(|(_, divergence)| ranks(divergence) == [1]));
    }
}
