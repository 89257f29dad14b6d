//! Exchange of weights with PyTorch.

use super::{
    common::{Run, assert_close, train, trained},
    mnist_ddp, python_with,
};
use burn::tensor::{Device, Tensor, TensorData};
use mnist::{
    data::{Dataset, PIXELS, normalise},
    model::Net,
};
use std::{fs, path::Path, process::Command};

const FLAGS: &str = "--dataset subset --mode single --train-limit 160 --eval-limit 20 --batch-size 16";
/// Number of images for the comparison of logits.
const COUNT: usize = 16;

/// The network of pytorch/examples: reads weights and normalised images, and writes logits and saved weights.
const SCRIPT: &str = r#"
import sys, torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import load_file, save_file
folder, batch_norm, prefix = sys.argv[1], sys.argv[2] == "True", sys.argv[3]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        if batch_norm:
            self.bn1, self.bn2 = nn.BatchNorm2d(32), nn.BatchNorm2d(64)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)
    def forward(self, x):
        x = self.conv1(x)
        x = F.relu(self.bn1(x) if batch_norm else x)
        x = self.conv2(x)
        x = F.relu(self.bn2(x) if batch_norm else x)
        x = torch.flatten(F.max_pool2d(x, 2), 1)
        return self.fc2(F.relu(self.fc1(x)))
net = Net().eval()
state = load_file(folder + "/out.safetensors")
assert all(key.startswith(prefix) for key in state), state.keys()
net.load_state_dict({key[len(prefix):]: value for key, value in state.items()})
images = torch.frombuffer(bytearray(open(folder + "/images", "rb").read()), dtype=torch.float32)
with torch.no_grad():
    logits = net(images.reshape(-1, 1, 28, 28))
open(folder + "/logits", "wb").write(logits.numpy().tobytes())
wrapped = nn.DataParallel(net).state_dict()
assert all(key.startswith("module.") for key in wrapped)
torch.save(wrapped, folder + "/back.pt")
save_file(net.state_dict(), folder + "/back.safetensors")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
torch.save({"start_epoch": 3, "model_state_dict": wrapped, "Optimizer_state_dict": optimizer.state_dict()},
           folder + "/checkpoint.pth")
compiled = {"model._orig_mod." + key: value for key, value in net.state_dict().items()}
torch.save({"epoch": 3, "state_dict": compiled | {"loss.weight": torch.ones(10)}}, folder + "/lightning.pt")
torch.save(net.double().state_dict(), folder + "/double.pt")
"#;

/// The normalised images for the comparison of logits, in rows of [`PIXELS`].
fn images() -> Vec<f32> {
    let test = Dataset::subset([Some(1), Some(COUNT)]).expect("the subset").test;
    test.pixels.iter().map(|pixel| normalise(f32::from(*pixel))).collect()
}

fn logits(model: &Path) -> Vec<f64> {
    let device = Device::flex();
    let net = Net::open(model, &device).expect("weights");
    let images = Tensor::<4>::from_data(TensorData::new(images(), [COUNT, 1, 28, 28]), &device);
    net.forward(images).into_data().convert::<f64>().try_into_vec().expect("numbers")
}

fn floats(path: &Path) -> Vec<f64> {
    let bytes = fs::read(path).expect("written by Python");
    bytes.chunks_exact(4).map(|four| f64::from(f32::from_le_bytes(four.try_into().expect("four")))).collect()
}

#[test]
fn weights_are_exchanged_with_pytorch_in_both_directions() {
    let Some(python) = python_with(&["torch", "safetensors.torch"]) else { return };
    for (batch_norm, prefix) in [(false, "module."), (true, "")] {
        let run = trained(&format!("{FLAGS}{}", if batch_norm { " --batch-norm" } else { "" }));
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = |name: &str| folder.path().join(name);
        let (from, to) = (run.path.display().to_string(), path("out.safetensors").display().to_string());
        let mut args = vec!["weights", "export", &from, &to];
        args.extend((!prefix.is_empty()).then_some("--module-prefix"));
        let outcome = mnist_ddp(&args).succeeded();
        assert!(outcome.stdout.contains(if batch_norm { "16 tensors" } else { "8 tensors" }), "{outcome:#?}");
        let bytes: Vec<u8> = images().iter().flat_map(|pixel| pixel.to_le_bytes()).collect();
        assert_eq!(bytes.len(), COUNT * PIXELS * 4);
        fs::write(path("images"), bytes).expect("written");
        let folder_name = folder.path().display().to_string();
        let flag = if batch_norm { "True" } else { "False" };
        let output = Command::new(&python).args(["-c", SCRIPT, &folder_name, flag, prefix]).output();
        let output = output.expect("Python");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

        let ours = logits(&run.path);
        assert_close("logits in PyTorch", &floats(&path("logits")), &ours, 1e-5);
        let files =
            ["out.safetensors", "back.pt", "back.safetensors", "checkpoint.pth", "lightning.pt", "double.pt"];
        for back in files {
            assert_eq!(logits(&path(back)), ours, "{back}");
        }
        // Training reads the same weights: without learning they do not change.
        if !batch_norm {
            for back in ["back.pt", "checkpoint.pth", "out.safetensors", "double.pt"] {
                let flags = format!("{FLAGS} --max-steps 1 --lr 0 --momentum 0");
                let same = trained(&format!("{flags} --weights {}", path(back).display()));
                assert_eq!(same.digest(), run.digest(), "{back}");
            }
        }
    }
}

#[test]
fn an_export_reads_back_equal_and_is_never_overwritten() {
    let run = trained(&format!("{FLAGS} --max-steps 2"));
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let from = run.path.join("checkpoints/last").display().to_string();
    mnist_ddp(&["weights", "export", &from, &path("a.safetensors")]).succeeded();
    mnist_ddp(&["weights", "export", &path("a.safetensors"), &path("b.safetensors"), "--module-prefix"])
        .succeeded();
    assert_eq!(logits(Path::new(&path("b.safetensors"))), logits(&run.path));
    let before = fs::read(path("a.safetensors")).expect("a file");
    let again = mnist_ddp(&["weights", "export", &from, &path("a.safetensors")]);
    again.failed_with(&["a.safetensors", "already exists"]);
    assert_eq!(fs::read(path("a.safetensors")).expect("a file"), before);
    mnist_ddp(&["weights", "export", &from, &path("a.pt")]).failed_with(&["a.pt", ".safetensors"]);
    mnist_ddp(&["weights", "export", &path("none"), &path("c.safetensors")])
        .failed_with(&["none", "no such file"]);
}

/// `--export` of a training run writes what `weights export` writes of its folder.
#[test]
fn a_run_exports_its_weights() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let flags = |to: &str| {
        // An absolute path replaces the folder.
        let (run, to) = (path("run"), folder.path().join(to).display().to_string());
        format!("--device cpu --progress plain {FLAGS} --max-steps 2 --run-dir {run} --export {to}")
    };
    for (file, words) in [
        ("a.pt", "must end in .safetensors"),
        ("run.safetensors", "already exists"),
        ("run.safetensors/x.safetensors", "cannot write"),
        ("/proc/x.safetensors", "cannot write"),
    ] {
        fs::write(path("run.safetensors"), "").expect("written");
        train(&flags(file)).failed_with(&["--export", file, words]);
        assert!(!Path::new(&path("run")).exists(), "nothing was trained");
    }
    train(&flags("a.safetensors")).succeeded();
    mnist_ddp(&["weights", "export", &path("run"), &path("b.safetensors")]).succeeded();
    let [ours, theirs] = ["a.safetensors", "b.safetensors"].map(|name| fs::read(path(name)).expect("a file"));
    // The order of the entries in the header's metadata varies.
    let names = |file: &[u8]| String::from_utf8_lossy(&file[..2000]).matches("fc1.weight").count();
    assert!(names(&ours) == 1 && ours[2000..] == theirs[2000..] && ours.len() > 4_000_000);
    // The file is not a setting of the run.
    let again = format!("--config {} --run-dir {} --max-steps 1", path("run"), path("again"));
    train(&format!("--progress plain {again}")).succeeded();
}

#[test]
fn a_pickle_that_calls_a_function_is_not_executed() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (trap, file) = (folder.path().join("trap"), folder.path().join("model.pt"));
    let shell = format!("touch {}", trap.display());
    let length = (shell.len() as u32).to_le_bytes();
    // What `pickle` writes for an object whose `__reduce__` returns `os.system` and a command.
    let pickle = [&b"\x80\x02cposix\nsystem\nX"[..], &length, shell.as_bytes(), b"\x85R."].concat();
    fs::write(&file, pickle).expect("a file");
    assert!(Net::open(&file, &Device::flex()).is_err());
    assert!(!trap.exists(), "the command was executed");
}

/// Header and data of a safetensors file.
pub fn header_and_data(path: &Path) -> (String, Vec<u8>) {
    let file = fs::read(path).expect("a file");
    let (length, rest) = file.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize;
    (String::from_utf8(rest[..length].to_vec()).expect("JSON"), rest[length..].to_vec())
}

fn write_safetensors(path: &Path, header: &str, data: &[u8]) {
    let length = (header.len() as u64).to_le_bytes();
    fs::write(path, [&length, header.as_bytes(), data].concat()).expect("written");
}

/// As Lightning and `torch.compile` write it.
#[test]
fn a_prefix_of_the_names_is_removed_with_all_that_is_outside_of_it() {
    let run = trained(&format!("{FLAGS} --max-steps 1"));
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("model.safetensors");
    mnist_ddp(&["weights", "export", &run.path.display().to_string(), &path.display().to_string()])
        .succeeded();
    let (header, data) = header_and_data(&path);
    let header =
        header.replace(r#""conv"#, r#""model._orig_mod.conv"#).replace(r#""fc"#, r#""model._orig_mod.fc"#);
    let outside =
        header.replacen('{', r#"{"loss.weight":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"#, 1);
    write_safetensors(&path, &outside, &data);
    assert_eq!(logits(&path), logits(&run.path));
    // Without a prefix, the tensor is one too many.
    write_safetensors(&path, &outside.replace("model._orig_mod.", ""), &data);
    let error = Net::open(&path, &Device::flex()).map(drop).expect_err("too many").to_string();
    assert!(error.contains("`loss.weight` is not in the network"), "{error}");
}

#[test]
fn mismatched_weights_are_named_or_partially_loaded() {
    // A classifier of 26 letters with the same first layers.
    let run = trained(&format!("{FLAGS} --max-steps 1"));
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("letters.safetensors");
    mnist_ddp(&["weights", "export", &run.path.display().to_string(), &path.display().to_string()])
        .succeeded();
    let (header, data) = header_and_data(&path);
    let letters = header.replace(r#""shape":[10,128]"#, r#""shape":[20,64] "#);
    assert_ne!(letters, header, "as many numbers, of another shape");
    write_safetensors(&path, &letters, &data);
    let flags = format!("--device cpu --progress plain {FLAGS} --max-steps 1 --weights {}", path.display());
    let shapes = "`fc2.weight` has the shape [20, 64] in the file, and [10, 128] in the network";
    train(&flags).failed_with(&[shapes, "--no-strict"]);
    let to = folder.path().join("run");
    let outcome = train(&format!("{flags} --no-strict --lr 0 --run-dir {}", to.display())).succeeded();
    assert!(outcome.stderr.contains("warning: --init-from: `fc2.weight`"), "{outcome:#?}");
    assert!(!outcome.stderr.contains("conv1"), "{outcome:#?}");
    assert_ne!(Run::at(to).digest(), run.digest());
    // All names are those of another network.
    let foreign = header.replace("conv", "layer").replace("fc", "dense");
    let none = folder.path().join("none.safetensors");
    write_safetensors(&none, &foreign, &data);
    let flags = flags.replace("letters", "none") + " --no-strict";
    train(&flags).failed_with(&["none.safetensors", "no tensor matches"]);
    let picture = folder.path().join("x.png").display().to_string();
    let outcome = mnist_ddp(&["predict", "--model", &path.display().to_string(), &picture]);
    outcome.failed_with(&["--model", "fc2.weight", "[20, 64]"]);
}
