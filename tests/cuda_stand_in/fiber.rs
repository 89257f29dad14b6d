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

const STACK: usize = 256 << 10;
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
enum Wants {
    ToRun,
    Block,
    Warp,
    Nothing,
}

#[derive(Clone, Copy)]
struct Fiber {
    stack: *mut c_void,
    wants: Wants,
    operation: c_int,
    argument: u32,
    value: u64,
    /// Address of its warp operation: lanes in other branches do not take part.
    place: *mut c_void,
}

struct Block {
    fibers: [Fiber; MOST],
    stacks: *mut u8,
    scheduler: *mut c_void,
    current: usize,
    entry: *const Entry,
    arguments: *const *const c_void,
}

struct Shared(UnsafeCell<Block>);
// SAFETY: only the executing thread uses it.
unsafe impl Sync for Shared {}

const IDLE: Fiber = Fiber {
    stack: ptr::null_mut(),
    wants: Wants::Nothing,
    operation: 0,
    argument: 0,
    value: 0,
    place: ptr::null_mut(),
};

static BLOCK: Shared = Shared(UnsafeCell::new(Block {
    fibers: [IDLE; MOST],
    stacks: ptr::null_mut(),
    scheduler: ptr::null_mut(),
    current: 0,
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

/// Switches to the scheduler until this fiber can continue.
unsafe fn leave(wants: Wants) {
    unsafe {
        let block = BLOCK.0.get();
        let fiber = &raw mut (*block).fibers[(*block).current];
        (*fiber).wants = wants;
        cuda_stand_in_switch(&raw mut (*fiber).stack, (*block).scheduler);
    }
}

extern "C" fn barrier() {
    unsafe { leave(Wants::Block) }
}

extern "C" fn warp(operation: c_int, value: u64, argument: u32, place: *mut c_void) -> u64 {
    unsafe {
        let block = BLOCK.0.get();
        let index = (*block).current;
        let fiber = &raw mut (*block).fibers[index];
        ((*fiber).operation, (*fiber).value, (*fiber).argument, (*fiber).place) =
            (operation, value, argument, place);
        leave(Wants::Warp);
        (*block).fibers[index].value
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
fn exchange(lanes: &mut [Fiber]) {
    let Some(place) = lanes.iter().find(|lane| lane.wants == Wants::Warp).map(|lane| lane.place) else {
        return;
    };
    let meets = |lane: &Fiber| lane.wants == Wants::Warp && lane.place == place;
    let given: Vec<Option<u64>> = lanes.iter().map(|lane| meets(lane).then_some(lane.value)).collect();
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
            _ => given.get(source).copied().flatten().unwrap_or(own),
        };
        lane.wants = Wants::ToRun;
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
            (*block).fibers[index] = Fiber { stack: stack.sub(8).cast(), wants: Wants::ToRun, ..IDLE };
        }
        let mut live = count;
        while live > 0 {
            for first in (0..count).step_by(WARP) {
                let last = (first + WARP).min(count);
                loop {
                    for index in first..last {
                        if (*block).fibers[index].wants != Wants::ToRun {
                            continue;
                        }
                        (*block).current = index;
                        let number = index as u32;
                        *entry.thread_index =
                            Dim { x: number % width, y: number / width % height, z: number / width / height };
                        cuda_stand_in_switch(&raw mut (*block).scheduler, (*block).fibers[index].stack);
                        live -= usize::from((*block).fibers[index].wants == Wants::Nothing);
                    }
                    let lanes = &mut (&mut (*block).fibers)[first..last];
                    if lanes.iter().all(|lane| lane.wants != Wants::Warp) {
                        break;
                    }
                    exchange(lanes);
                }
            }
            for fiber in &mut (&mut (*block).fibers)[..count] {
                if fiber.wants == Wants::Block {
                    fiber.wants = Wants::ToRun;
                }
            }
        }
    }
}
