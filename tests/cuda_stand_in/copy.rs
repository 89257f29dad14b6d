//! Copies between host and devices, and fills.

use crate::{
    INVALID_VALUE, SUCCESS, Status,
    memory::{is_device, is_pinned},
    settings::count,
    stream::{self, Operation},
};

pub fn outside(what: &str, address: usize, length: usize) -> Status {
    eprintln!("CUDA stand-in: {what} of {length} bytes at {address:#x} is not within one live allocation");
    INVALID_VALUE
}

/// The driver copies from pageable memory before it returns, from page-locked memory later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: usize,
    from: usize,
    length: usize,
    stream: usize,
) -> Status {
    count("uploads");
    if !is_device(to, length) {
        return outside("an upload", to, length);
    }
    if is_pinned(from, length) {
        return stream::push(stream, Operation::Copy { to, from, length });
    }
    // SAFETY: the caller passes this number of bytes.
    let bytes = unsafe { std::slice::from_raw_parts(from as *const u8, length) }.to_vec();
    stream::push(stream, Operation::Write { to, bytes })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: usize,
    from: usize,
    length: usize,
    stream: usize,
) -> Status {
    count("downloads");
    if !is_device(from, length) {
        return outside("a download", from, length);
    }
    let status = stream::push(stream, Operation::Copy { to, from, length });
    // A copy to pageable memory is complete when the call returns.
    if is_pinned(to, length) || status != SUCCESS { status } else { stream::synchronize(stream) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: usize, from: usize, length: usize, stream: usize) -> Status {
    for address in [to, from] {
        if !is_device(address, length) {
            return outside("a copy on the device", address, length);
        }
    }
    stream::push(stream, Operation::Copy { to, from, length })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(to: usize, value: u8, length: usize, stream: usize) -> Status {
    if !is_device(to, length) {
        return outside("a fill", to, length);
    }
    stream::push(stream, Operation::Write { to, bytes: vec![value; length] })
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
pub struct Copy2d {
    from_x: usize,
    from_y: usize,
    from_kind: u32,
    from_host: usize,
    from_device: usize,
    from_array: usize,
    from_pitch: usize,
    to_x: usize,
    to_y: usize,
    to_kind: u32,
    to_host: usize,
    to_device: usize,
    to_array: usize,
    to_pitch: usize,
    width: usize,
    height: usize,
}

const HOST: u32 = 1;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy2DAsync_v2(copy: *const Copy2d, stream: usize) -> Status {
    let copy = unsafe { &*copy };
    let (upload, download) = (copy.from_kind == HOST, copy.to_kind == HOST);
    let from =
        if upload { copy.from_host } else { copy.from_device } + copy.from_y * copy.from_pitch + copy.from_x;
    let to = if download { copy.to_host } else { copy.to_device } + copy.to_y * copy.to_pitch + copy.to_x;
    count(if upload { "uploads" } else { "downloads" });
    for row in 0..copy.height {
        let (from, to) = (from + row * copy.from_pitch, to + row * copy.to_pitch);
        if !upload && !is_device(from, copy.width) {
            return outside("a row of a download", from, copy.width);
        }
        if !download && !is_device(to, copy.width) {
            return outside("a row of an upload", to, copy.width);
        }
        let status = if upload {
            // SAFETY: the caller passes this number of bytes per row.
            let bytes = unsafe { std::slice::from_raw_parts(from as *const u8, copy.width) }.to_vec();
            stream::push(stream, Operation::Write { to, bytes })
        } else {
            stream::push(stream, Operation::Copy { to, from, length: copy.width })
        };
        if status != SUCCESS {
            return status;
        }
    }
    if download { stream::synchronize(stream) } else { SUCCESS }
}
