//! Data sets for training programs: pictures in folders, windows of text, and verified downloads.

mod augment;
mod balance;
pub mod download;
mod exif;
mod image_folder;
mod picture;
mod survey;
mod text_windows;

pub use augment::ImageAugment;
pub use balance::class_weights;
pub use exif::Orientation;
pub use image_folder::{Image, ImageFolder, ImageFormat, ImageSplits};
pub use picture::{Decoded, Picture};
pub use survey::{Channels, OnCorrupt, survey};
pub use text_windows::{Tokens, WindowBatcher, WindowStarts, Windows, shift};
