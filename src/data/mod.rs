//! Data sets for training programs: pictures in memory and in folders, windows of text, and verified downloads.

mod augment;
pub mod download;
mod exif;
mod grey_images;
mod image_folder;
mod picture;
mod survey;
mod text_windows;

pub use augment::ImageAugment;
pub use grey_images::GreyImages;
pub use image_folder::{Image, ImageFolder, ImageFormat, ImageSplits};
pub use kernels::pictures::{Filter, resample};
pub use picture::{Picture, luma};
pub use survey::{Channels, OnCorrupt, class_weights, survey};
pub use text_windows::{Tokens, WindowBatcher, Windows, shift, window_starts};
