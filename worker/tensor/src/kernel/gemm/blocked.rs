//! The product by blocks: panels of both operands are packed so that the innermost loop reads them in order from the
//! nearest caches.
//!
//! # Source
//! Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008); Van Zee and van de Geijn,
//! "BLIS" (2015). The loops below are theirs from the outside in.
#![expect(unsafe_code, reason = "threads write disjoint parts of one result by pointer")]

use std::ops::Range;

use super::{
    Activation, Epilogue,
    element::Kernels,
    out::Out,
    pack::PackSource,
    plan::{Blocks, Order, chunks, shares},
    scratch::{Part, Scratch},
    tile::{Finish, Tile, TileBias},
};
use crate::{
    kernel::{Write, isa::Isa, threads::Threads},
    real::Real,
};

/// Multiply-adds below which a second thread costs more than it brings.
const MIN_SHARE: usize = 64 * 64 * 64;
/// Elements of the largest tile of any kernel.
const TILE: usize = 14 * 32;

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
        assert!(out.shape() == [m, n], "{m} x {n} product in {:?}", out.shape());
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
        let is_along = self.along(depth.clone(), rows.clone()).is_some();
        let packed = if is_along { rows.end..rows.end } else { rows.clone() };
        let to = &mut self.a_panels[..packed.len() * depth.len()];
        self.task.a.pack_panels(self.task.isa, to, self.blocks.height, depth.clone(), packed);
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
            let reach = depth.len().saturating_sub(1) * step + self.blocks.width;
            assert!(reach <= data.len(), "panel of {} elements", data.len());
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
        let is_last = index + 1 == self.blocks.depths;
        let mode = if index == 0 { self.task.mode } else { Write::Add };
        let (a, a_stride) = self.panel_a(i, rows.clone(), index);
        // Field by field: to copy what was only just put together would wait for the stores of the tile before.
        let (bias, activation) = match is_last {
            true => (self.task.epilogue.bias_of(&rows, &columns), self.task.epilogue.activation),
            false => (TileBias::None, Activation::Identity),
        };
        let mut call = Tile {
            depth: self.blocks.depth(index).len(),
            a,
            a_stride,
            b: b.data,
            b_step: b.step,
            c: self.out.at(rows.start, columns.start),
            c_step: self.out.row_stride(),
            rows: rows.len(),
            columns: columns.len(),
            mode,
            finish: Finish { bias, activation },
        };
        if self.out.is_run(columns.clone()) {
            // SAFETY: `a` is a packed panel; `b` is a packed panel of the kernel's width, or a checked part of
            // the source of full width; rows and columns lie in this share of the result, each row in one
            // run, and it is this thread's alone (`run_share`); they are no more than the kernel's; a bias is
            // these rows' or columns'.
            unsafe { (self.kernels.tile)(&call) };
            return;
        }
        self.tile_apart(&mut call, rows, columns);
    }

    /// A tile whose columns do not lie side by side: by way of a buffer.
    #[inline(never)]
    fn tile_apart(&self, call: &mut Tile<T>, rows: Range<usize>, columns: Range<usize>) {
        let mut buffer = [T::ZERO; TILE];
        let buffer = &mut buffer[..rows.len() * columns.len()];
        call.c = buffer.as_mut_ptr();
        call.c_step = columns.len();
        if call.mode == Write::Add {
            // SAFETY: this thread's share.
            unsafe { self.out.load(rows.clone(), columns.clone(), buffer) };
        }
        // SAFETY: as in `tile`, but for the result, which is the buffer.
        unsafe { (self.kernels.tile)(call) };
        // SAFETY: this thread's share.
        unsafe { self.out.store(rows, columns, buffer) };
    }

    /// One panel of A: packed, or where it lies.
    fn panel_a(&self, i: usize, rows: Range<usize>, index: usize) -> (*const T, Option<usize>) {
        let depth = self.blocks.depth(index);
        if let Some((data, stride)) = self.along(depth.clone(), rows.clone()) {
            return (data.as_ptr(), Some(stride));
        }
        let at = i * self.blocks.height * depth.len();
        (self.a_panels[at..][..rows.len() * depth.len()].as_ptr(), None)
    }

    /// Rows of A where they lie, if they are read too few times to be worth packing.
    fn along(&self, depth: Range<usize>, rows: Range<usize>) -> Option<(&[T], usize)> {
        if !self.blocks.is_narrow || depth.is_empty() || rows.is_empty() {
            return None;
        }
        let (data, stride) = self.task.a.along(depth.clone(), rows.clone())?;
        let reach = (rows.len() - 1) * stride + depth.len();
        assert!(reach <= data.len(), "rows of {} elements", data.len());
        Some((data, stride))
    }
}
