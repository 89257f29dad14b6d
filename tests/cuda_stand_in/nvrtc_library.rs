//! NVIDIA's NVRTC behind the stand-in, for kernels that are not executed.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    path::Path,
    ptr,
    time::Instant,
};

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}
const NOW: c_int = 2;

type Create = unsafe extern "C" fn(
    *mut *mut c_void,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(*mut c_void, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(*mut c_void, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(*mut c_void, *mut u8) -> c_int;
type Destroy = unsafe extern "C" fn(*mut *mut c_void) -> c_int;

/// Compiles `source` and returns PTX, or the log. Writes the seconds and the log to the file `report`.
pub fn compile(library: &str, source: &str, options: &[&CStr], report: &Path) -> Result<Vec<u8>, Vec<u8>> {
    let path = CString::new(library).unwrap_or_default();
    let source = CString::new(source).unwrap_or_default();
    // The option adds the machine's folders to the PTX.
    let options: Vec<*const c_char> =
        options.iter().filter(|option| **option != c"-lineinfo").map(|option| option.as_ptr()).collect();
    let began = Instant::now();
    // SAFETY: the library is NVRTC, whose functions have these types (nvrtc.h); pointers live as long as the calls.
    let result = unsafe {
        let handle = dlopen(path.as_ptr(), NOW);
        assert!(!handle.is_null(), "{library} cannot be loaded");
        let symbol = |name: &CStr| dlsym(handle, name.as_ptr());
        let create: Create = std::mem::transmute(symbol(c"nvrtcCreateProgram"));
        let compile: Compile = std::mem::transmute(symbol(c"nvrtcCompileProgram"));
        let destroy: Destroy = std::mem::transmute(symbol(c"nvrtcDestroyProgram"));
        let mut program = ptr::null_mut();
        create(&mut program, source.as_ptr(), ptr::null(), 0, ptr::null(), ptr::null());
        let compiled = compile(program, options.len() as c_int, options.as_ptr()) == 0;
        let (size, get) = match compiled {
            true => (c"nvrtcGetPTXSize", c"nvrtcGetPTX"),
            false => (c"nvrtcGetProgramLogSize", c"nvrtcGetProgramLog"),
        };
        let size: Size = std::mem::transmute(symbol(size));
        let get: Get = std::mem::transmute(symbol(get));
        let mut length = 0;
        size(program, &mut length);
        let mut text = vec![0; length];
        get(program, text.as_mut_ptr());
        destroy(&mut program);
        if compiled { Ok(text) } else { Err(text) }
    };
    let log = result.as_ref().err().map(|log| String::from_utf8_lossy(log).replace('\0', ""));
    let text = format!("{:.3}\n{}", began.elapsed().as_secs_f64(), log.unwrap_or_default());
    let _ = std::fs::write(report, text);
    result
}
