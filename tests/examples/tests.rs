//! Networks, data and text generation of the examples with a library of their own, except MNIST's.

mod char_gpt;
mod image_folder;
