//! The board: numbers that each grain of a step reports, one row a grain, in the shared pages of a
//! node. The rows of other nodes come with the votes.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

use lockstep_shm::Mapping;

/// A table of f64 that all ranks see. Each row is written by the rank that owns the grain, before
/// it enters the step's last bucket, and read by all after that bucket is done.
///
/// There are two tables, used in turn: whoever writes into a table for step s + 2 has seen every
/// rank enter step s + 1, so all have read step s.
#[derive(Debug, Clone)]
pub struct Board {
    map: Arc<Mapping>,
    offset: usize,
    rows: usize,
    columns: usize,
}

impl Board {
    pub(crate) const TABLES: usize = 2;

    pub(crate) fn bytes(rows: usize, columns: usize) -> usize {
        Self::TABLES * rows * columns * size_of::<f64>()
    }

    pub(crate) fn new(map: Arc<Mapping>, offset: usize, rows: usize, columns: usize) -> Self {
        Self { map, offset, rows, columns }
    }

    /// Rows of a table.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Writes one row for `step`.
    ///
    /// # Panics
    /// If there is no such row, or `values` has not its length.
    pub fn write(&self, step: u64, row: usize, values: &[f64]) {
        assert!(values.len() == self.columns, "{} values of {}", values.len(), self.columns);
        for (column, value) in values.iter().enumerate() {
            let cell = self.map.u64_at(self.cell(step, row, column));
            // Published with the sequence line of the last bucket.
            cell.store(value.to_bits(), Ordering::Relaxed);
        }
    }

    /// The bits of some rows, one after the other, to be written on another node's board.
    pub(crate) fn rows_of(&self, step: u64, rows: Range<usize>) -> Vec<u64> {
        let cells = rows.flat_map(|row| (0..self.columns).map(move |column| (row, column)));
        let bits =
            |(row, column)| self.map.u64_at(self.cell(step, row, column)).load(Ordering::Relaxed);
        cells.map(bits).collect()
    }

    /// Writes rows as another node has them, from `first` on; what is too much is left out.
    pub(crate) fn put_rows(&self, step: u64, first: usize, bits: &[u64]) {
        for (row, bits) in (first..self.rows).zip(bits.chunks_exact(self.columns.max(1))) {
            for (column, bits) in bits.iter().enumerate() {
                self.map.u64_at(self.cell(step, row, column)).store(*bits, Ordering::Relaxed);
            }
        }
    }

    /// Sums the first `rows` rows of `step`, in order.
    ///
    /// # Panics
    /// If there are fewer rows.
    pub fn sum(&self, step: u64, rows: usize) -> Vec<f64> {
        let mut sums = vec![0.0; self.columns];
        for row in 0..rows {
            for (column, sum) in sums.iter_mut().enumerate() {
                let cell = self.map.u64_at(self.cell(step, row, column));
                *sum += f64::from_bits(cell.load(Ordering::Relaxed));
            }
        }
        sums
    }

    fn cell(&self, step: u64, row: usize, column: usize) -> usize {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let table = usize::from(step % 2 == 1);
        self.offset + ((table * self.rows + row) * self.columns + column) * size_of::<f64>()
    }
}
