//! How a product is cut up: into shares for threads, these into blocks for caches. Only the depth of the blocks changes
//! bits, and it depends on the length of the summed axis alone.

use std::ops::Range;

use super::element::Kernels;
use crate::kernel::cache::second_level;

/// The longest run of the summed axis that is added up in registers: results depend on it.
const MAX_DEPTH: usize = 512;
/// Elements of A that are packed at a time: half of a second-level cache of 1 MiB holds them.
const A_BLOCK: usize = 128 * 1024;
/// Elements of B that are packed at a time, where they are read more than once: for the third level.
const B_BLOCK: usize = 512 * 1024;
/// With no more row panels than this the panels of B are read where they lie, if they can be: packing would cost
/// more than it saves.
const DIRECT_PANELS: usize = 6;
/// The same of panels of columns and the rows of A.
const DIRECT_COLUMNS: usize = 4;
/// C that is added to once more for each block of the depth should stay in the second-level cache meanwhile.
const C_BLOCK: usize = 128 * 1024;

/// B of no more elements than this stays in the second-level cache, taking half of it: then C is written row by row.
fn near_b<T>() -> usize {
    second_level() / 2 / size_of::<T>()
}

/// How many blocks a summed axis has, and their length (the last may be shorter).
fn depth_blocks_of(depth: usize) -> (usize, usize) {
    let count = depth.div_ceil(MAX_DEPTH).max(1);
    (count, depth.div_ceil(count))
}

/// The blocks of a summed axis, at least one.
pub(crate) fn depth_blocks(depth: usize) -> impl Iterator<Item = Range<usize>> {
    let (count, len) = depth_blocks_of(depth);
    (0..count).map(move |index| index * len..((index + 1) * len).min(depth))
}

/// How a share of a product is cut into blocks.
pub(super) struct Blocks {
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
    depth: usize,
    /// How many blocks the summed axis has, and their length (the last may be shorter).
    pub(super) depths: usize,
    depth_len: usize,
    /// The height of a row panel.
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) rows_per_block: usize,
    pub(super) columns_per_block: usize,
    pub(super) is_short: bool,
    pub(super) is_narrow: bool,
    pub(super) order: Order,
}

/// In which order the tiles of a block are made. It changes no bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// B is small: it is packed whole and stays near, and C is written row by row.
    RowByRow,
    /// A fits into one block: each panel of B is used up before the next is packed.
    PanelByPanel,
    /// A block of B is packed once and used by every block of A.
    BlockByBlock,
}

impl Blocks {
    pub(super) fn new<T>(
        kernels: &Kernels<T>,
        rows: Range<usize>,
        columns: Range<usize>,
        depth: usize,
    ) -> Self {
        let (depths, depth_len) = depth_blocks_of(depth);
        let height = rows.len().div_ceil(rows.len().div_ceil(kernels.rows).max(1));
        let width = kernels.columns;
        let per_block = |block: usize, across: usize, lanes: usize, all: usize| {
            let most = (block / across.max(1)).max(lanes);
            all.div_ceil(all.div_ceil(most).max(1)).next_multiple_of(lanes)
        };
        let rows_per_block = per_block(A_BLOCK, depth_len, height, rows.len());
        let is_short = rows.len() <= DIRECT_PANELS * height;
        let is_narrow = columns.len() <= DIRECT_COLUMNS * width;
        let order = if columns.len() * depth_len <= near_b::<T>() && !is_short {
            Order::RowByRow
        } else if rows.len() <= rows_per_block {
            Order::PanelByPanel
        } else {
            Order::BlockByBlock
        };
        let rows_per_block = match order {
            // B has the cache.
            Order::RowByRow => per_block(A_BLOCK / 4, depth_len, height, rows.len()),
            Order::PanelByPanel | Order::BlockByBlock => rows_per_block,
        };
        let columns_per_block = match order {
            Order::BlockByBlock => per_block(B_BLOCK, depth_len, width, columns.len()),
            Order::PanelByPanel if 1 < depths => {
                per_block(C_BLOCK, rows.len(), width, columns.len())
            }
            Order::RowByRow | Order::PanelByPanel => columns.len().next_multiple_of(width),
        };
        Self {
            rows,
            columns,
            depth,
            depths,
            depth_len,
            height,
            width,
            rows_per_block,
            columns_per_block,
            is_short,
            is_narrow,
            order,
        }
    }

    pub(super) fn a_len(&self) -> usize {
        self.rows_per_block * self.depth_len
    }

    pub(super) fn b_len(&self) -> usize {
        match self.order {
            Order::PanelByPanel => self.width * self.depth_len,
            Order::RowByRow | Order::BlockByBlock => self.columns_per_block * self.depth_len,
        }
    }

    pub(super) fn depth(&self, index: usize) -> Range<usize> {
        let start = index * self.depth_len;
        start..(start + self.depth_len).min(self.depth)
    }
}

/// `range` in pieces of `len`, the last as long as what is left.
pub(crate) fn chunks(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(len.max(1)).map(move |start| start..(start + len).min(end))
}

/// A grid of shares of a result.
pub(super) struct Shares {
    m: usize,
    n: usize,
    rows: usize,
    columns: usize,
}

/// As many shares as there are threads, of whole tiles, along the side that has more of them.
pub(super) fn shares<T>(kernels: &Kernels<T>, m: usize, n: usize, count: usize) -> Shares {
    let (row_tiles, column_tiles) = (m.div_ceil(kernels.rows), n.div_ceil(kernels.columns));
    let each = |all: usize, tiles: usize, unit: usize| {
        if tiles < count { all } else { all.div_ceil(count).next_multiple_of(unit).min(all) }
    };
    if row_tiles <= column_tiles {
        Shares { m, n, rows: m, columns: each(n, column_tiles, kernels.columns) }
    } else {
        Shares { m, n, rows: each(m, row_tiles, kernels.rows), columns: n }
    }
}

impl Shares {
    pub(super) fn count(&self) -> usize {
        self.m.div_ceil(self.rows) * self.n.div_ceil(self.columns)
    }

    pub(super) fn get(&self, index: usize) -> (Range<usize>, Range<usize>) {
        let across = self.n.div_ceil(self.columns);
        let (row, column) = (index / across * self.rows, index % across * self.columns);
        (row..(row + self.rows).min(self.m), column..(column + self.columns).min(self.n))
    }
}
