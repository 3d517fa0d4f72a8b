//! The product by blocks: panels of both operands are packed so that the innermost loop reads them in order from the
//! nearest caches.
//!
//! # Source
//! Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008); Van Zee and van de Geijn,
//! "BLIS" (2015). The loops below are theirs from the outside in.
#![expect(unsafe_code, reason = "threads write disjoint parts of one result by pointer")]

use std::{marker::PhantomData, ops::Range, slice};

use super::{
    Epilogue, MatrixMut,
    element::{Kernels, Tile},
    pack::PackSource,
    scratch::{Part, Scratch},
};
use crate::{
    kernel::{Write, isa::Isa, threads::Threads},
    real::Real,
};

/// The longest run of the summed axis that is added up in registers: results depend on it.
const MAX_DEPTH: usize = 512;
/// Elements of A that are packed at a time: half of a second-level cache of 1 MiB holds them.
const A_BLOCK: usize = 128 * 1024;
/// Elements of B that are packed at a time, where they are read more than once: for the third level.
const B_BLOCK: usize = 512 * 1024;
/// B of no more elements than this stays in the second-level cache: then C is written row by row.
const NEAR_B: usize = 128 * 1024;
/// With no more row panels than this the panels of B are read where they lie, if they can be: packing would cost
/// more than it saves.
const DIRECT_PANELS: usize = 6;
/// Multiply-adds below which a second thread costs more than it brings.
const MIN_SHARE: usize = 64 * 64 * 64;

/// A result that several threads write to, each its own part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Out<'a, T> {
    data: *mut T,
    row_stride: usize,
    rows: usize,
    columns: usize,
    borrow: PhantomData<&'a mut T>,
}

// SAFETY: it is a mutable borrow whose parts go to different threads; floats may be sent.
unsafe impl<T: Send> Send for Out<'_, T> {}
// SAFETY: as above: sharing it is how the threads get their parts.
unsafe impl<T: Send> Sync for Out<'_, T> {}

impl<'a, T: Real> Out<'a, T> {
    pub(crate) fn new(dst: MatrixMut<'a, T>) -> Self {
        Self {
            data: dst.data.as_mut_ptr(),
            row_stride: dst.row_stride,
            rows: dst.rows,
            columns: dst.columns,
            borrow: PhantomData,
        }
    }

    /// A piece of a row.
    ///
    /// # Safety
    /// Nobody else holds a reference to any of it.
    pub(super) unsafe fn piece(&self, row: usize, columns: Range<usize>) -> &'a mut [T] {
        assert!(row < self.rows && columns.end <= self.columns);
        // SAFETY: in bounds by the assert and by the checks of `MatrixMut`; not shared, as the caller vouches.
        unsafe {
            slice::from_raw_parts_mut(
                self.data.add(row * self.row_stride + columns.start),
                columns.len(),
            )
        }
    }

    /// Where an element lies.
    pub(super) fn at(&self, row: usize, column: usize) -> *mut T {
        assert!(row < self.rows && column < self.columns);
        // SAFETY: in bounds by the assert and by the checks of `MatrixMut`.
        unsafe { self.data.add(row * self.row_stride + column) }
    }

    pub(super) fn row_stride(&self) -> usize {
        self.row_stride
    }
}

/// A blocked product to be made.
#[derive(Debug)]
pub(crate) struct Task<'a, T, A, B> {
    pub(crate) isa: Isa,
    /// `[k, m]`: A's transpose.
    pub(crate) a: &'a A,
    /// `[k, n]`.
    pub(crate) b: &'a B,
    /// m, n, k.
    pub(crate) shape: [usize; 3],
    pub(crate) mode: Write,
    pub(crate) epilogue: Epilogue<'a, T>,
}

impl<T: Real, A: PackSource<T>, B: PackSource<T>> Task<'_, T, A, B> {
    /// Makes the product with as many threads as it is worth; they share rows or columns, never a sum.
    pub(crate) fn run(&self, out: Out<'_, T>, threads: &Threads, scratch: &mut Scratch) {
        let [m, n, k] = self.shape;
        assert!(out.rows == m && out.columns == n);
        if m == 0 || n == 0 {
            return;
        }
        let worth = (m * n).saturating_mul(k) / MIN_SHARE + 1;
        let kernels = T::kernels(self.isa.runnable());
        let shares = shares(&kernels, m, n, threads.count().min(worth));
        threads.for_each_chunk(scratch.parts(shares.count()), 1, |index, part| {
            let (rows, columns) = shares.get(index);
            for part in part {
                // SAFETY: the shares are disjoint.
                unsafe { self.run_share(out, rows.clone(), columns.clone(), part) };
            }
        });
    }

    /// # Safety
    /// Nobody else touches this part of the result.
    pub(crate) unsafe fn run_share(
        &self,
        out: Out<'_, T>,
        rows: Range<usize>,
        columns: Range<usize>,
        part: &mut Part,
    ) {
        let kernels = T::kernels(self.isa.runnable());
        let blocks = Blocks::new(&kernels, rows, columns, self.shape[2]);
        let (a_panels, b_panels) = part.lend(blocks.a_len(), blocks.b_len());
        let mut share = Share { task: self, kernels, blocks: &blocks, out, a_panels, b_panels };
        for columns in chunks(blocks.columns.clone(), blocks.columns_per_block) {
            for index in 0..blocks.depths {
                for rows in chunks(blocks.rows.clone(), blocks.rows_per_block) {
                    share.block(rows, columns.clone(), index);
                }
            }
        }
    }
}

/// How a share of a product is cut into blocks.
struct Blocks {
    rows: Range<usize>,
    columns: Range<usize>,
    depth: usize,
    /// How many blocks the summed axis has, and their length (the last may be shorter).
    depths: usize,
    depth_len: usize,
    /// The height of a row panel.
    height: usize,
    width: usize,
    rows_per_block: usize,
    columns_per_block: usize,
    is_short: bool,
    order: Order,
}

/// In which order the tiles of a block are made. It changes no bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// B is small: it is packed whole and stays near, and C is written row by row.
    RowByRow,
    /// A fits into one block: each panel of B is used up before the next is packed.
    PanelByPanel,
    /// A block of B is packed once and used by every block of A.
    BlockByBlock,
}

impl Blocks {
    fn new<T>(
        kernels: &Kernels<T>,
        rows: Range<usize>,
        columns: Range<usize>,
        depth: usize,
    ) -> Self {
        let depths = depth.div_ceil(MAX_DEPTH).max(1);
        let depth_len = depth.div_ceil(depths);
        let height = rows.len().div_ceil(rows.len().div_ceil(kernels.rows).max(1));
        let width = kernels.columns;
        let per_block = |block: usize, lanes: usize, all: usize| {
            let most = (block / depth_len.max(1)).max(lanes);
            all.div_ceil(all.div_ceil(most).max(1)).next_multiple_of(lanes)
        };
        let rows_per_block = per_block(A_BLOCK, height, rows.len());
        let is_short = rows.len() <= DIRECT_PANELS * height;
        let order = if columns.len() * depth_len <= NEAR_B && !is_short {
            Order::RowByRow
        } else if rows.len() <= rows_per_block {
            Order::PanelByPanel
        } else {
            Order::BlockByBlock
        };
        let columns_per_block = match order {
            Order::BlockByBlock => per_block(B_BLOCK, width, columns.len()),
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
            order,
        }
    }

    fn a_len(&self) -> usize {
        self.rows_per_block * self.depth_len
    }

    fn b_len(&self) -> usize {
        match self.order {
            Order::PanelByPanel => self.width * self.depth_len,
            Order::RowByRow | Order::BlockByBlock => self.columns_per_block * self.depth_len,
        }
    }

    fn depth(&self, index: usize) -> Range<usize> {
        let start = index * self.depth_len;
        start..(start + self.depth_len).min(self.depth)
    }
}

struct Share<'a, T: 'static, A, B> {
    task: &'a Task<'a, T, A, B>,
    kernels: Kernels<T>,
    blocks: &'a Blocks,
    out: Out<'a, T>,
    a_panels: &'a mut [T],
    b_panels: &'a mut [T],
}

/// One panel of B, packed or where it lies.
#[derive(Clone, Copy)]
struct PanelB<T> {
    data: *const T,
    step: usize,
    is_direct: bool,
}

impl<T: Real, A: PackSource<T>, B: PackSource<T>> Share<'_, T, A, B> {
    /// One block of C and of the depth. The first rows' block packs B for those that follow.
    fn block(&mut self, rows: Range<usize>, columns: Range<usize>, index: usize) {
        let depth = self.blocks.depth(index);
        let is_first = rows.start == self.blocks.rows.start;
        for (i, panel) in chunks(rows.clone(), self.blocks.height).enumerate() {
            let to = &mut self.a_panels[i * self.blocks.height * depth.len()..];
            let to = &mut to[..panel.len() * depth.len()];
            self.task.a.pack(self.task.isa, to, panel.len(), depth.clone(), panel);
        }
        if self.blocks.order == Order::RowByRow {
            for (j, panel) in chunks(columns.clone(), self.blocks.width).enumerate() {
                if is_first {
                    self.pack_b(j, depth.clone(), panel);
                }
            }
            for (i, tile_rows) in chunks(rows, self.blocks.height).enumerate() {
                for (j, panel) in chunks(columns.clone(), self.blocks.width).enumerate() {
                    let b = self.packed_b(j, depth.len());
                    self.tile(i, tile_rows.clone(), panel, b, index);
                }
            }
            return;
        }
        let end = columns.end;
        let tiles = rows.len().div_ceil(self.blocks.height);
        for (j, panel) in chunks(columns, self.blocks.width).enumerate() {
            let b = self.panel_b(j, depth.clone(), panel.clone(), is_first);
            let next = panel.end..(panel.end + self.blocks.width).min(end);
            let mut ahead = chunks(depth.clone(), depth.len().div_ceil(tiles));
            for (i, tile_rows) in chunks(rows.clone(), self.blocks.height).enumerate() {
                if is_first
                    && !b.is_direct
                    && !next.is_empty()
                    && let Some(depth) = ahead.next()
                {
                    self.task.b.prefetch(depth, next.clone());
                }
                self.tile(i, tile_rows, panel.clone(), b, index);
            }
        }
    }

    fn panel_b(
        &mut self,
        j: usize,
        depth: Range<usize>,
        panel: Range<usize>,
        is_first: bool,
    ) -> PanelB<T> {
        let is_single = self.blocks.order == Order::PanelByPanel;
        if self.blocks.is_short
            && panel.len() == self.blocks.width
            && let Some((data, step)) = self.task.b.direct(depth.clone(), panel.clone())
        {
            return PanelB { data: data.as_ptr(), step, is_direct: true };
        }
        let j = if is_single { 0 } else { j };
        let len = depth.len();
        if is_first {
            self.pack_b(j, depth, panel);
        }
        self.packed_b(j, len)
    }

    fn pack_b(&mut self, j: usize, depth: Range<usize>, panel: Range<usize>) {
        let len = self.blocks.width * depth.len();
        let to = &mut self.b_panels[j * len..][..len];
        self.task.b.pack(self.task.isa, to, self.blocks.width, depth, panel);
    }

    fn packed_b(&self, j: usize, depth: usize) -> PanelB<T> {
        let len = self.blocks.width * depth;
        PanelB {
            data: self.b_panels[j * len..][..len].as_ptr(),
            step: self.blocks.width,
            is_direct: false,
        }
    }

    /// The tile of row panel `i` of the block and a panel of B.
    fn tile(
        &self,
        i: usize,
        rows: Range<usize>,
        columns: Range<usize>,
        b: PanelB<T>,
        index: usize,
    ) {
        let depth = self.blocks.depth(index).len();
        let a = &self.a_panels[i * self.blocks.height * depth..][..rows.len() * depth];
        let tile = Tile {
            depth,
            a: a.as_ptr(),
            b: b.data,
            b_step: b.step,
            c: self.out.at(rows.start, columns.start),
            c_step: self.out.row_stride(),
            rows: rows.len(),
            columns: columns.len(),
            mode: if index == 0 { self.task.mode } else { Write::Add },
        };
        // SAFETY: `a` is a packed panel of `rows` · `depth` elements; `b` is a packed panel of the kernel's
        // width, or a checked part of the source of full width; rows and columns lie in this share of the
        // result, which is this thread's alone (`run_share`); they are no more than the kernel's.
        unsafe { (self.kernels.tile)(&tile) };
        if index + 1 == self.blocks.depths && !self.task.epilogue.is_none() {
            let pieces = rows.map(|row| {
                // SAFETY: this thread's share; each row is lent once, and the kernel is done.
                let piece = unsafe { self.out.piece(row, columns.clone()) };
                (row, columns.start, piece)
            });
            self.task.epilogue.finish(self.task.isa, pieces);
        }
    }
}

/// `range` in pieces of `len`, the last as long as what is left.
pub(super) fn chunks(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(len.max(1)).map(move |start| start..(start + len).min(end))
}

/// A grid of shares of a result.
struct Shares {
    m: usize,
    n: usize,
    rows: usize,
    columns: usize,
}

/// As many shares as there are threads, of whole tiles, along the side that has more of them.
fn shares<T>(kernels: &Kernels<T>, m: usize, n: usize, count: usize) -> Shares {
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
    fn count(&self) -> usize {
        self.m.div_ceil(self.rows) * self.n.div_ceil(self.columns)
    }

    fn get(&self, index: usize) -> (Range<usize>, Range<usize>) {
        let across = self.n.div_ceil(self.columns);
        let (row, column) = (index / across * self.rows, index % across * self.columns);
        (row..(row + self.rows).min(self.m), column..(column + self.columns).min(self.n))
    }
}
