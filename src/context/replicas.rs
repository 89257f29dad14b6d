//! Devices of `--mode dp`: those that hold replicas, and the one that gathers outputs.

use super::{args::ContextArgs, values::DpReduceArg};
use crate::{
    device::{Accelerator, DeviceArg, Gpus, LocalDevice, transport},
    process::console::Console,
};
use anyhow::{Context, Error, Result, bail};
use collective::{
    dp::{DataParallelConfig, DpReduce},
    transport::nccl::DeviceSite,
};
use serde::Serialize;
use std::{fmt, sync::Arc};

/// NCCL devices.
type Sites = Vec<Arc<dyn DeviceSite>>;

/// Number of replicas on a machine without a GPU.
const CPU_REPLICAS: usize = 2;

/// Replicas of a run; the first one holds the module and the optimizer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Replicas {
    pub devices: Vec<LocalDevice>,
    pub output: LocalDevice,
}

impl Replicas {
    /// Chooses devices from the flags and the available GPUs.
    ///
    /// `gpus` is the reason if there are none.
    ///
    /// # Errors
    /// If a device is missing or named twice, or flags contradict each other.
    pub fn decide(args: &ContextArgs, gpus: &Result<Gpus, String>) -> Result<Self> {
        let devices = match (&args.device_ids[..], args.device, gpus) {
            ([], DeviceArg::Gpu(kind, Some(number)), _) => bail!(
                "--mode dp --device {kind}:{number}: one device needs no data parallelism; name several with --device-ids"
            ),
            ([], DeviceArg::Auto | DeviceArg::Gpu(_, None), Ok(Gpus { kind, count })) => {
                (0..*count).map(|number| LocalDevice::Gpu(*kind, number)).collect()
            }
            ([], DeviceArg::Gpu(kind, None), Err(reason)) => bail!("--device {kind}: {reason}"),
            ([], DeviceArg::Auto | DeviceArg::Cpu, _) => {
                (0..CPU_REPLICAS).map(LocalDevice::CpuReplica).collect()
            }
            (ids, ..) => ids.to_vec(),
        };
        for (at, id) in devices.iter().enumerate() {
            if devices[..at].contains(id) {
                bail!("--device-ids names {id} twice");
            }
            match (id, args.device) {
                (LocalDevice::CpuReplica(_), DeviceArg::Auto | DeviceArg::Cpu) => {}
                (LocalDevice::Gpu(..), DeviceArg::Auto) => {}
                (LocalDevice::Gpu(kind, _), DeviceArg::Gpu(wanted, None)) if *kind == wanted => {}
                (LocalDevice::Cpu | LocalDevice::CpuReplica(_) | LocalDevice::Gpu(..), _) => {
                    bail!("--device-ids {id} contradicts --device; leave out --device")
                }
            }
            if let LocalDevice::Gpu(kind, number) = id {
                match gpus {
                    Err(reason) => bail!("--device-ids {id}: {reason}"),
                    Ok(gpus) if gpus.kind != *kind => {
                        bail!("--device-ids {id}: add --device {kind}, without a number")
                    }
                    Ok(Gpus { count, .. }) if number >= count => {
                        bail!("--device-ids {id}: this machine has {count} GPUs, numbered from 0")
                    }
                    Ok(_) => {}
                }
            }
        }
        let Some(first) = devices.first().copied() else { bail!("--mode dp needs at least one device") };
        let is_cpu = |id: &LocalDevice| matches!(id, LocalDevice::CpuReplica(_));
        if devices.iter().any(|id| is_cpu(id) != is_cpu(&first)) {
            bail!("--device-ids mixes CPU and GPU; the batch would wait for the slower one");
        }
        let output = args.output_device.unwrap_or(first);
        if !devices.contains(&output) {
            bail!("--output-device {output} is not one of the devices {}", names(&devices));
        }
        Ok(Replicas { devices, output })
    }

    /// Converts to the engine's configuration; CPU replicas use `threads` threads each.
    ///
    /// # Errors
    /// If a device is unavailable, or `--dp-reduce all-reduce` requires NCCL and it cannot be used.
    pub fn config(
        &self,
        args: &ContextArgs,
        threads: usize,
        sync_batch_norm: bool,
        console: Console,
    ) -> Result<DataParallelConfig> {
        let (reduce, sites) = self.reduce(args.dp_reduce, console)?;
        let device = |id: &LocalDevice| Ok((id.burn()?, id.to_string()));
        Ok(DataParallelConfig {
            devices: self.devices.iter().map(device).collect::<Result<_>>()?,
            output: self.devices.iter().position(|id| *id == self.output).unwrap_or_default(),
            reduce,
            sites,
            threads,
            sync_batch_norm,
        })
    }

    /// Returns the gradient reduction, and the NCCL devices if it uses NCCL.
    fn reduce(&self, wanted: Option<DpReduceArg>, console: Console) -> Result<(DpReduce, Sites)> {
        let cuda = |id: &LocalDevice| matches!(id, LocalDevice::Gpu(Accelerator::Cuda, _));
        let nccl = self.devices.len() > 1 && self.devices.iter().all(cuda);
        Ok(match wanted {
            Some(DpReduceArg::Tree) => (DpReduce::Tree, Sites::new()),
            Some(DpReduceArg::AllReduce) if nccl => {
                let why = "--dp-reduce all-reduce: main and tree do not need NCCL";
                (DpReduce::AllReduce, self.sites().map_err(Error::msg).context(why)?)
            }
            Some(DpReduceArg::AllReduce) => (DpReduce::AllReduce, Sites::new()),
            None if nccl => match self.sites() {
                Ok(sites) => (DpReduce::AllReduce, sites),
                Err(why) => {
                    console.warn(&format!("gradients are copied from GPU to GPU, without NCCL: {why}"));
                    (DpReduce::Main, Sites::new())
                }
            },
            Some(DpReduceArg::Main) | None => (DpReduce::Main, Sites::new()),
        })
    }

    fn sites(&self) -> Result<Sites, String> {
        let site = |id: &LocalDevice| {
            let site = transport::site(*id)?;
            site.library().map_err(|error| error.to_string())?;
            Ok(site)
        };
        self.devices.iter().map(site).collect()
    }
}

impl fmt::Display for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&names(&self.devices))?;
        if self.devices.first() != Some(&self.output) {
            write!(f, ", output on {}", self.output)
        } else {
            Ok(())
        }
    }
}

fn names(devices: &[LocalDevice]) -> String {
    devices.iter().map(LocalDevice::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::args::tests::parse;

    fn decide(flags: &str, gpus: Option<usize>) -> Result<Replicas> {
        let gpus = gpus.map(|count| Gpus { kind: Accelerator::Cuda, count });
        Replicas::decide(
            &parse(&format!("--mode dp {flags}"))?,
            &gpus.ok_or_else(|| "libcuda.so not found".into()),
        )
    }

    #[test]
    fn devices_come_in_the_order_given() {
        let replicas = decide("--device-ids 1,2,0 --output-device 0", Some(3)).expect("replicas");
        assert_eq!(replicas.devices, [1, 2, 0].map(|n| LocalDevice::Gpu(Accelerator::Cuda, n)));
        assert_eq!(replicas.output, LocalDevice::Gpu(Accelerator::Cuda, 0));
        assert_eq!(replicas.to_string(), "cuda:1, cuda:2, cuda:0, output on cuda:0");
    }

    #[test]
    fn without_ids_all_gpus_or_two_replicas_on_the_cpu() {
        assert_eq!(decide("", Some(4)).expect("replicas").devices.len(), 4);
        assert_eq!(decide("", None).expect("replicas").to_string(), "cpu:0, cpu:1");
    }

    #[test]
    fn errors_name_the_flag() {
        for (flags, gpus, part) in [
            ("--device-ids 0,0", Some(2), "cuda:0 twice"),
            ("--device-ids 0,2", Some(2), "cuda:2: this machine has 2 GPUs"),
            ("--device-ids 0,1", None, "libcuda.so not found"),
            ("--device-ids cpu:0,cuda:0", Some(1), "mixes"),
            ("--device-ids cpu:0,cpu:1 --output-device cpu:2", None, "--output-device cpu:2"),
            ("--device-ids gpu", None, "cuda:N"),
            ("--device cpu --device-ids cuda:0", Some(1), "leave out --device"),
            ("--device cuda", None, "libcuda.so not found"),
        ] {
            let error = decide(flags, gpus).expect_err(flags).to_string();
            assert!(error.contains(part), "{flags}: {error}");
        }
    }
}
