//! A stand-in for libnvrtc (`libnvrtc.so`), which writes a program's source to a file.
//!
//! The "PTX" is the name of that file, which holds the source between `cuda_on_cpu.h` and a launcher. The libcuda
//! stand-in compiles it with g++ when a kernel is first launched, so that unused kernels are not compiled.
//!
//! The files are in the folder `CUDA_STAND_IN_CACHE`, named by a hash of their contents: headers, source and the flags
//! of g++.
#![allow(non_snake_case, clippy::missing_safety_doc)]

mod compiler;
mod nvrtc_library;
mod ptx;
mod tf32;

use std::{
    env,
    ffi::{CStr, c_char, c_int},
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    io::Write,
    path::{Path, PathBuf},
    process, ptr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

const SUCCESS: c_int = 0;
const COMPILATION: c_int = 6;
/// The kernel by which this project verifies that the device computes. It is always executed.
const PROBE: &str = "burn_ddp_probe";
const HEADER: &str = include_str!("cuda_on_cpu.h");
const HALF_HEADER: &str = include_str!("half_on_cpu.h");
const MMA_HEADER: &str = include_str!("mma_on_cpu.h");

pub struct Program {
    source: String,
    image: Vec<u8>,
    log: Vec<u8>,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> c_int {
    let version = env::var("CUDA_STAND_IN_NVRTC").unwrap_or_else(|_| "13.0".into());
    let (first, second) = version.split_once('.').unwrap_or(("13", "0"));
    unsafe { (*major, *minor) = (first.parse().unwrap_or(13), second.parse().unwrap_or(0)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCreateProgram(
    program: *mut *mut Program,
    source: *const c_char,
    _name: *const c_char,
    _headers: c_int,
    _texts: *const *const c_char,
    _names: *const *const c_char,
) -> c_int {
    let source = unsafe { CStr::from_ptr(source) }.to_string_lossy().into_owned();
    unsafe { *program = Box::into_raw(Box::new(Program { source, image: Vec::new(), log: vec![0] })) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcDestroyProgram(program: *mut *mut Program) -> c_int {
    drop(unsafe { Box::from_raw(*program) });
    unsafe { *program = ptr::null_mut() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCompileProgram(
    program: *mut Program,
    options: c_int,
    texts: *const *const c_char,
) -> c_int {
    let program = unsafe { &mut *program };
    let number = COMPILED.fetch_add(1, Ordering::Relaxed) + 1;
    if setting("FAIL_COMPILE") == Some(number) || is_refused(&program.source) {
        program.log = b"probe.cu(1): error: refused by CUDA_STAND_IN_FAIL_COMPILE\0".to_vec();
        return COMPILATION;
    }
    // CubeCL panics on a log that is not UTF-8.
    if setting("BAD_LOG") == Some(number) {
        program.log = b"\xff\0".to_vec();
        return COMPILATION;
    }
    let written = match env::var_os("CUDA_STAND_IN_SOURCES") {
        Some(folder) if !program.source.contains(PROBE) => keep(&program.source, Path::new(&folder), "cu"),
        _ => write(&program.source),
    };
    match written {
        Ok(path) => {
            program.image = match env::var("CUDA_STAND_IN_NVRTC_LIBRARY") {
                Ok(library) if path.extension().is_some_and(|kind| kind == "cu") => {
                    let options: Vec<&CStr> =
                        (0..options as usize).map(|i| unsafe { CStr::from_ptr(*texts.add(i)) }).collect();
                    let report = path.with_extension("txt");
                    match nvrtc_library::compile(&library, &program.source, &options, &report) {
                        Ok(image) => image,
                        Err(log) => {
                            program.log = log;
                            return COMPILATION;
                        }
                    }
                }
                _ => path.to_string_lossy().bytes().chain([0]).collect(),
            };
            count(kernel_name(&program.source).unwrap_or_default());
            SUCCESS
        }
        Err(why) => {
            program.log = why.into_bytes();
            program.log.push(0);
            COMPILATION
        }
    }
}

/// Adds a program to the counts, as `settings.rs` describes them, with the name of its kernel.
fn count(kernel: &str) {
    if let Ok(path) = env::var("CUDA_STAND_IN_COUNTS") {
        let path = format!("{path}.{}.nvrtc", process::id());
        let file = fs::OpenOptions::new().create(true).append(true).open(path);
        let _ =
            file.and_then(|mut file| file.write_all(format!("programs 1\nkernel:{kernel} 1\n").as_bytes()));
    }
}

/// Number of programs that were to be compiled.
static COMPILED: AtomicU64 = AtomicU64::new(0);

/// Whether the kernel is the one of `FAIL_KERNEL`.
fn is_refused(source: &str) -> bool {
    static REFUSED: AtomicBool = AtomicBool::new(false);
    let Ok(start) = env::var("CUDA_STAND_IN_FAIL_KERNEL") else { return false };
    kernel_name(source).is_some_and(|name| name.starts_with(&start)) && !REFUSED.swap(true, Ordering::Relaxed)
}

fn setting(name: &str) -> Option<u64> {
    env::var(format!("CUDA_STAND_IN_{name}")).ok()?.parse().ok()
}

fn write(source: &str) -> Result<PathBuf, String> {
    let kernel = kernel_name(source).ok_or("there is no __global__ function in the source")?;
    let meets = ["__syncthreads", "_sync(", "__syncwarp", "mma.sync", "ldmatrix"]
        .iter()
        .any(|word| source.contains(word));
    let tensor_cores = ["<mma.h>", "mma.sync", "ldmatrix"].iter().any(|word| source.contains(word));
    let halves = tensor_cores || HALF_INCLUDES.iter().any(|include| source.contains(include));
    let header = |needed, text| if needed { text } else { "" };
    let headers = [HEADER, header(halves, HALF_HEADER), header(tensor_cores, MMA_HEADER)].join("\n");
    let mut source = without_includes(source);
    if env::var_os("CUDA_STAND_IN_TF32").is_some() {
        source = tf32::rounded(kernel, source);
    }
    let mut text = format!(
        "// {}\n{headers}\n#line 1 \"{kernel}.cu\"\n{}\n",
        compiler::flags().join(" "),
        ptx::calls(&source)
    );
    // The block's shared memory, declared without a size. One block runs at a time.
    let shared = source.split_once("extern __shared__").and_then(|(_, rest)| rest.split('[').next());
    let shared = shared.and_then(|declaration| declaration.rsplit([' ', '*']).next());
    if let Some(name) = shared {
        text += &format!("__attribute__((aligned(128))) char {name}[SHARED_MEMORY];\n");
    }
    let shared = shared.unwrap_or("nullptr");
    let most = launch_bounds(&source).unwrap_or("1024");
    text += &format!("ENTRY({kernel}, {}, {shared}, {most})\n", u8::from(meets));
    let folder = env::var("CUDA_STAND_IN_CACHE").map_err(|_| "CUDA_STAND_IN_CACHE is not set")?;
    keep(&text, Path::new(&folder), "cpp")
}

/// Writes the text to a file that is named by a hash of its contents.
fn keep(text: &str, folder: &Path, extension: &str) -> Result<PathBuf, String> {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let path = folder.join(format!("{:016x}.{extension}", hasher.finish()));
    if !path.is_file() {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let own = path.with_extension(format!("{}-{number}.{extension}", process::id()));
        let failed = |error: std::io::Error| format!("{}: {error}", own.display());
        fs::write(&own, text).map_err(failed)?;
        fs::rename(&own, &path).map_err(failed)?;
    }
    Ok(path)
}

/// Name of the first kernel.
fn kernel_name(source: &str) -> Option<&str> {
    let mut rest = &source[source.find("__global__")?..];
    loop {
        let open = rest.find('(')?;
        let before = rest[..open].trim_end();
        let start = before.rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_').map_or(0, |at| at + 1);
        match &before[start..] {
            "__launch_bounds__" | "__cluster_dims__" => rest = &rest[open + 1..],
            name => return Some(name),
        }
    }
}

/// The number of threads in the kernel's launch bounds.
fn launch_bounds(source: &str) -> Option<&str> {
    source.split_once("__launch_bounds__(")?.1.split([')', ',']).next()
}

/// CUDA's headers of half types.
const HALF_INCLUDES: [&str; 2] = ["#include <cuda_fp16.h>", "#include <cuda_bf16.h>"];

/// The source without CUDA's headers.
fn without_includes(source: &str) -> String {
    let includes = HALF_INCLUDES.iter().chain(&["#include <mma.h>"]);
    includes.fold(source.to_owned(), |text, include| text.replace(include, ""))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetPTXSize(program: *const Program, size: *mut usize) -> c_int {
    unsafe { *size = (*program).image.len() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetPTX(program: *const Program, to: *mut u8) -> c_int {
    unsafe { ptr::copy_nonoverlapping((*program).image.as_ptr(), to, (&(*program).image).len()) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetProgramLogSize(program: *const Program, size: *mut usize) -> c_int {
    unsafe { *size = (*program).log.len() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetProgramLog(program: *const Program, to: *mut u8) -> c_int {
    unsafe { ptr::copy_nonoverlapping((*program).log.as_ptr(), to, (&(*program).log).len()) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetErrorString(status: c_int) -> *const c_char {
    match status {
        SUCCESS => c"NVRTC_SUCCESS",
        COMPILATION => c"NVRTC_ERROR_COMPILATION",
        _ => c"NVRTC_ERROR",
    }
    .as_ptr()
}
