//! The network interfaces, as devices of NCCL.

use crate::{failure::PluginFailure, logger};
use herringbone::{NcclInterface, NcclNetwork, settings::Environment};
use std::{
    ffi::{CStr, CString, c_int},
    fs,
    net::IpAddr,
    os::unix::ffi::OsStringExt,
    path::Path,
    sync::OnceLock,
};

/// Where the kernel shows interfaces.
const INTERFACES: &str = "/sys/class/net";
/// The speed of an interface that does not say it, in Mbit/s, as of NCCL's own sockets.
const USUAL_SPEED: c_int = 10_000;
/// Amazon's number among vendors of cards. A flow there has at most 5 to 10 Gbit/s, so NCCL's own sockets use as many.
const AMAZON: &str = "0x1d0f";
const AMAZON_STREAMS: usize = 16;
const USUAL_STREAMS: usize = 4;

/// An interface.
#[derive(Debug)]
pub(crate) struct NetDevice {
    pub(crate) name: CString,
    /// The folder of its PCI device, if it is one.
    pub(crate) pci_path: Option<CString>,
    /// In Mbit/s.
    pub(crate) speed: c_int,
    /// Where it is listened.
    pub(crate) address: IpAddr,
    /// How many streams a connection to it has.
    pub(crate) streams: usize,
}

static DEVICES: OnceLock<Vec<NetDevice>> = OnceLock::new();

/// Finds the devices, and logs them; later calls find the same.
///
/// # Errors
/// If a setting cannot be used, or there is no interface.
pub(crate) fn find() -> Result<(), PluginFailure> {
    if DEVICES.get().is_some() {
        return Ok(());
    }
    let network = NcclNetwork::of(&Environment::of_process())
        .map_err(|error| PluginFailure::usage(error.to_string()))?;
    let folder = Path::new(INTERFACES);
    let device = |found: &NcclInterface| NetDevice::of(&found.name, found.address, network.streams, folder);
    let found: Vec<NetDevice> = network.interfaces.iter().map(device).collect();
    let line = shown(&found);
    // Of threads that find them at once, one says so.
    if DEVICES.set(found).is_ok() {
        logger::info(&line);
    }
    Ok(())
}

/// All devices, in the order of their numbers.
///
/// # Errors
/// If NCCL has not set up the plug-in.
pub(crate) fn all() -> Result<&'static [NetDevice], PluginFailure> {
    let found = DEVICES.get().map(Vec::as_slice);
    found.ok_or_else(|| PluginFailure::internal("NCCL has not called init, or has ignored its failure"))
}

/// A device.
///
/// # Errors
/// If there is none with this number.
pub(crate) fn one(number: c_int) -> Result<&'static NetDevice, PluginFailure> {
    let all = all()?;
    let found = usize::try_from(number).ok().and_then(|number| all.get(number));
    let count = all.len();
    found.ok_or_else(|| PluginFailure::argument(format!("NCCL asks for device {number} of {count}")))
}

/// The line of the log.
fn shown(devices: &[NetDevice]) -> String {
    let each = devices.iter().enumerate().map(|(number, device)| {
        let NetDevice { name, address, streams, .. } = device;
        let unit = if *streams == 1 { "stream" } else { "streams" };
        format!("[{number}] {} {address}, {streams} {unit}", name.to_string_lossy())
    });
    let version = env!("CARGO_PKG_VERSION");
    format!("Herringbone {version} over TCP: {}", each.collect::<Vec<_>>().join("; "))
}

impl NetDevice {
    /// As `folder` shows an interface, with the number of streams that is asked for, if one is.
    fn of(name: &str, address: IpAddr, streams: Option<usize>, folder: &Path) -> Self {
        let folder = folder.join(name);
        let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
        let speed = read("speed").and_then(|text| text.trim().parse().ok()).filter(|speed| *speed > 0);
        let usual = match read("device/vendor") {
            Some(vendor) if vendor.trim() == AMAZON => AMAZON_STREAMS,
            _ => USUAL_STREAMS,
        };
        let path = fs::canonicalize(folder.join("device")).ok();
        Self {
            name: CString::new(name).unwrap_or_default(),
            pci_path: path.and_then(|path| CString::new(path.into_os_string().into_vec()).ok()),
            speed: speed.unwrap_or(USUAL_SPEED),
            address,
            streams: streams.unwrap_or(usual),
        }
    }

    /// The folder of its PCI device, if it is one.
    pub(crate) fn pci_path(&self) -> Option<&CStr> {
        self.pci_path.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn texts(device: &NetDevice) -> [Option<&str>; 2] {
        [Some(device.name.as_c_str()), device.pci_path()].map(|text| text.and_then(|text| text.to_str().ok()))
    }

    #[test]
    fn a_device_is_as_the_kernel_shows_it() {
        let folder = std::env::temp_dir().join(format!("herringbone-nccl-devices-{}", std::process::id()));
        let card = folder.join("card");
        for name in ["card", "eth0", "lo", "wlan0"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        fs::write(card.join("vendor"), "0x1d0f\n").unwrap();
        fs::write(folder.join("eth0/speed"), "100000\n").unwrap();
        fs::write(folder.join("wlan0/speed"), "-1\n").unwrap();
        symlink("../card", folder.join("eth0/device")).unwrap();
        let of = |name: &str, streams| NetDevice::of(name, [192, 0, 2, 7].into(), streams, &folder);
        let card = fs::canonicalize(card).unwrap();
        let (eth0, lo, wlan0) = (of("eth0", None), of("lo", None), of("wlan0", Some(7)));
        assert_eq!(texts(&eth0), [Some("eth0"), card.to_str()]);
        assert_eq!((eth0.speed, eth0.streams), (100_000, 16));
        assert_eq!(texts(&lo), [Some("lo"), None]);
        assert_eq!((lo.speed, lo.streams), (10_000, 4));
        assert_eq!((wlan0.speed, wlan0.streams), (10_000, 7));
        assert_eq!(of("eth0", Some(1)).streams, 1);
        let line = shown(&[eth0, of("lo", Some(1))]);
        assert!(
            line.ends_with("over TCP: [0] eth0 192.0.2.7, 16 streams; [1] lo 192.0.2.7, 1 stream"),
            "{line}"
        );
        fs::remove_dir_all(&folder).unwrap();
    }
}
