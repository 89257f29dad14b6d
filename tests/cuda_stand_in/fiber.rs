//! The threads of a block as fibers on one CPU thread, on x86-64 only.
//!
//! Each runs until it reaches a barrier of the block or an exchange of its warp.

use crate::kernel::{Dim, Entry};
use std::{
    cell::UnsafeCell,
    ffi::{c_int, c_void},
    ptr,
    sync::atomic::{AtomicU64, Ordering},
};

/// Bytes of a fiber's stack, of which kernels use 2,112 at most.
const STACK: usize = 64 << 10;
const MOST: usize = 1024;
const WARP: usize = 32;

// Saves the callee-saved registers of the System V ABI on this stack, and switches to another.
std::arch::global_asm!(
    ".globl cuda_stand_in_switch",
    "cuda_stand_in_switch:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov [rdi], rsp",
    "mov rsp, rsi",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
);

unsafe extern "C" {
    fn cuda_stand_in_switch(save: *mut *mut c_void, to: *mut c_void);
}

#[derive(Clone, Copy, PartialEq)]
#[repr(u8)]
enum Wants {
    ToRun,
    Block,
    Warp,
    Nothing,
}

/// A fiber's part of an exchange.
#[derive(Clone, Copy)]
struct Lane {
    operation: c_int,
    argument: u32,
    value: u64,
    /// Address of its warp operation: lanes in other branches do not take part.
    place: *mut c_void,
}

/// The fibers of a block, by number.
struct Block {
    wants: [Wants; MOST],
    stack: [*mut c_void; MOST],
    index: [Dim; MOST],
    lanes: [Lane; MOST],
    stacks: *mut u8,
    scheduler: *mut c_void,
    current: usize,
    /// End of the current warp.
    last: usize,
    entry: *const Entry,
    arguments: *const *const c_void,
}

struct Shared(UnsafeCell<Block>);
// SAFETY: only the executing thread uses it.
unsafe impl Sync for Shared {}

const IDLE: Lane = Lane { operation: 0, argument: 0, value: 0, place: ptr::null_mut() };

static BLOCK: Shared = Shared(UnsafeCell::new(Block {
    wants: [Wants::Nothing; MOST],
    stack: [ptr::null_mut(); MOST],
    index: [Dim { x: 0, y: 0, z: 0 }; MOST],
    lanes: [IDLE; MOST],
    stacks: ptr::null_mut(),
    scheduler: ptr::null_mut(),
    current: 0,
    last: 0,
    entry: ptr::null(),
    arguments: ptr::null(),
}));

/// Functions that kernels call, with the layout in `cuda_on_cpu.h`.
#[repr(C)]
pub struct Api {
    barrier: extern "C" fn(),
    warp: extern "C" fn(c_int, u64, u32, *mut c_void) -> u64,
}

static API: Api = Api { barrier, warp };

pub fn api() -> *const c_void {
    (&raw const API).cast()
}

/// Runs the next fiber of the warp, or the scheduler, until this fiber can continue.
unsafe fn leave(wants: Wants) {
    unsafe {
        let block = BLOCK.0.get();
        let current = (*block).current;
        (*block).wants[current] = wants;
        let next = current + 1;
        let to = if next < (*block).last && (*block).wants[next] == Wants::ToRun {
            enter(block, next)
        } else {
            (*block).scheduler
        };
        cuda_stand_in_switch(&raw mut (*block).stack[current], to);
    }
}

/// Makes a fiber the current one, and returns its stack.
unsafe fn enter(block: *mut Block, fiber: usize) -> *mut c_void {
    unsafe {
        (*block).current = fiber;
        *(*(*block).entry).thread_index = (*block).index[fiber];
        (*block).stack[fiber]
    }
}

extern "C" fn barrier() {
    unsafe { leave(Wants::Block) }
}

extern "C" fn warp(operation: c_int, value: u64, argument: u32, place: *mut c_void) -> u64 {
    unsafe {
        let block = BLOCK.0.get();
        let current = (*block).current;
        (*block).lanes[current] = Lane { operation, argument, value, place };
        leave(Wants::Warp);
        (*block).lanes[current].value
    }
}

extern "C" fn run_fiber() {
    unsafe {
        let block = BLOCK.0.get();
        ((*(*block).entry).thread)((*block).arguments);
        leave(Wants::Nothing);
    }
    unreachable!("a fiber that has ended is not run again");
}

/// The operations of `warp`, with their numbers in `cuda_on_cpu.h`.
const INDEX: c_int = 1;
const XOR: c_int = 2;
const UP: c_int = 3;
const DOWN: c_int = 4;
const BALLOT: c_int = 5;
const GATHER: c_int = 6;

/// Performs the exchange of the lanes of a warp that wait at one address.
fn exchange(wants: &mut [Wants], lanes: &mut [Lane]) {
    let Some(first) = wants.iter().position(|wants| *wants == Wants::Warp) else { return };
    let place = lanes[first].place;
    let mut given = [None; WARP];
    for ((wants, lane), given) in wants.iter().zip(&*lanes).zip(&mut given) {
        *given = (*wants == Wants::Warp && lane.place == place).then_some(lane.value);
    }
    let votes = given.iter().enumerate().fold(0, |votes, (lane, value)| match value {
        Some(value) if *value != 0 => votes | 1 << lane,
        Some(_) | None => votes,
    });
    let gathered = gather(&given);
    for (index, lane) in lanes.iter_mut().enumerate() {
        let Some(own) = given[index] else { continue };
        let argument = lane.argument as usize;
        let source = match lane.operation {
            INDEX => argument % WARP,
            XOR => index ^ (argument % WARP),
            UP => index.checked_sub(argument).unwrap_or(index),
            DOWN if index + argument < WARP => index + argument,
            _ => index,
        };
        lane.value = match lane.operation {
            BALLOT => votes,
            GATHER => gathered,
            _ => given[source].unwrap_or(own),
        };
        wants[index] = Wants::ToRun;
    }
}

/// Address of the values of all lanes, which are kept until the next exchange.
fn gather(given: &[Option<u64>]) -> u64 {
    static VALUES: [AtomicU64; WARP] = [const { AtomicU64::new(0) }; WARP];
    for (kept, value) in VALUES.iter().zip(given) {
        kept.store(value.unwrap_or_default(), Ordering::Relaxed);
    }
    VALUES.as_ptr() as u64
}

/// Runs one block of a kernel with barriers or warp operations.
///
/// # Safety
/// `arguments` are those of the kernel. Only the executing thread may call it.
pub unsafe fn run_block(entry: &Entry, arguments: *const *const c_void, [width, height, depth]: [u32; 3]) {
    let count = (width * height * depth) as usize;
    unsafe {
        let block = BLOCK.0.get();
        if (*block).stacks.is_null() {
            (*block).stacks = Vec::<u8>::with_capacity(MOST * STACK).leak().as_mut_ptr();
        }
        ((*block).entry, (*block).arguments) = (entry, arguments);
        for index in 0..count {
            // Stacks with the same offset within a page would share cache sets.
            let top =
                (*block).stacks as usize / 64 * 64 + (index + 1) * STACK - 64 - index * 1088 % 8192 / 64 * 64;
            let stack = top as *mut usize;
            // Six registers, the entry point, and an unused return address.
            *stack.sub(1) = 0;
            *stack.sub(2) = run_fiber as *const () as usize;
            ptr::write_bytes(stack.sub(8), 0, 6);
            (*block).stack[index] = stack.sub(8).cast();
            let number = index as u32;
            (*block).index[index] =
                Dim { x: number % width, y: number / width % height, z: number / width / height };
        }
        let (wants, lanes) = (&raw mut (*block).wants, &raw mut (*block).lanes);
        (&mut *wants)[..count].fill(Wants::ToRun);
        while (&*wants)[..count].contains(&Wants::ToRun) {
            for first in (0..count).step_by(WARP) {
                let last = (first + WARP).min(count);
                (*block).last = last;
                loop {
                    let mut index = first;
                    while index < last {
                        if (*wants)[index] == Wants::ToRun {
                            // Returns when a later fiber of the warp cannot run.
                            cuda_stand_in_switch(&raw mut (*block).scheduler, enter(block, index));
                            index = (*block).current;
                        }
                        index += 1;
                    }
                    if !(&*wants)[first..last].contains(&Wants::Warp) {
                        break;
                    }
                    exchange(&mut (&mut *wants)[first..last], &mut (&mut *lanes)[first..last]);
                }
            }
            for wants in &mut (&mut *wants)[..count] {
                if *wants == Wants::Block {
                    *wants = Wants::ToRun;
                }
            }
        }
    }
}
