//! Layers around Burn's, and their settings.

/// A type around a layer of Burn, and one around its settings.
///
/// Visitors and mappers see Burn's layer, without another level of names, so that parameters, records and importers of
/// PyTorch's files are the same. Fields are those of Burn's layer by dereferencing. A second value keeps a setting that
/// Burn's layer has but does not show. The names are those in `burn::nn`, or in a part `of` it. The last line is a method
/// that calls a function of [`layers`](crate::layers).
macro_rules! drop_in {
    (
        $(#[$doc:meta])*
        $layer:ident, $config:ident $(of $part:ident)? $(, $setting:ident: $setting_type:ty)?;
        new($($needed:ident: $needed_type:ty),*),
        with($($with:ident: $type:ty),*),
        init($($device:ident: $device_type:ty)?)
        $(,
            $(#[$forward_doc:meta])*
            $forward:ident $(<$rank:ident>)? ($($input:ident: $x:ty),*) -> $y:ty = $function:path
        )?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $layer(pub burn::nn::$($part::)?$layer $(, $setting_type)?);

        #[doc = concat!("Settings of a [`", stringify!($layer), "`], with the names and defaults of Burn's `", stringify!($config), "`.")]
        #[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $config(pub burn::nn::$($part::)?$config);

        impl $config {
            /// Creates settings with Burn's defaults.
            #[allow(clippy::new_without_default, reason = "Burn's settings have no `Default` either")]
            pub fn new($($needed: $needed_type),*) -> Self {
                Self(burn::nn::$($part::)?$config::new($($needed),*))
            }

            $(
                #[doc = concat!("As `", stringify!($with), "` of Burn's settings.")]
                pub fn $with(self, value: $type) -> Self {
                    Self(self.0.$with(value))
                }
            )*

            /// Creates a layer.
            pub fn init(&self $(, $device: $device_type)?) -> $layer {
                $layer(self.0.init($($device)?) $(, self.0.$setting)?)
            }
        }

        $(
            impl $layer {
                $(#[$forward_doc])*
                pub fn $forward $(<const $rank: usize>)? (&self, $($input: $x),*) -> $y {
                    $function(&self.0, $($input),*)
                }
            }
        )?

        impl burn::config::Config for $config {}

        impl std::fmt::Display for $config {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&burn::config::config_to_json(self))
            }
        }

        crate::nn::drop_in::dereference!($layer, burn::nn::$($part::)?$layer);
        crate::nn::drop_in::dereference!($config, burn::nn::$($part::)?$config);

        impl burn::module::Module for $layer {
            fn collect_devices(&self, devices: burn::module::Devices) -> burn::module::Devices {
                self.0.collect_devices(devices)
            }

            fn fork(self, device: &burn::tensor::Device) -> Self {
                Self(self.0.fork(device) $(, std::convert::identity::<$setting_type>(self.1))?)
            }

            fn to_device(self, device: &burn::tensor::Device) -> Self {
                Self(self.0.to_device(device) $(, std::convert::identity::<$setting_type>(self.1))?)
            }

            fn train(self) -> Self {
                Self(self.0.train() $(, std::convert::identity::<$setting_type>(self.1))?)
            }

            fn valid(&self) -> Self {
                Self(self.0.valid() $(, std::convert::identity::<$setting_type>(self.1))?)
            }

            fn materialize(self) -> Self {
                Self(self.0.materialize() $(, std::convert::identity::<$setting_type>(self.1))?)
            }

            fn visit<Visitor: burn::module::ModuleVisitor>(&self, visitor: &mut Visitor) {
                self.0.visit(visitor);
            }

            fn map<Mapper: burn::module::ModuleMapper>(self, mapper: &mut Mapper) -> Self {
                Self(self.0.map(mapper) $(, std::convert::identity::<$setting_type>(self.1))?)
            }
        }

        impl burn::module::ModuleDisplayDefault for $layer {
            fn content(&self, content: burn::module::Content) -> Option<burn::module::Content> {
                self.0.content(content)
            }

            fn num_params(&self) -> usize {
                burn::module::Module::num_params(self)
            }
        }

        impl burn::module::ModuleDisplay for $layer {
            fn custom_settings(&self) -> Option<burn::module::DisplaySettings> {
                self.0.custom_settings()
            }

            fn custom_content(&self, content: burn::module::Content) -> Option<burn::module::Content> {
                self.0.custom_content(content)
            }
        }

        impl std::fmt::Display for $layer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

/// Access to the fields of the value inside.
macro_rules! dereference {
    ($outer:ty, $inner:ty) => {
        impl std::ops::Deref for $outer {
            type Target = $inner;

            fn deref(&self) -> &$inner {
                &self.0
            }
        }

        impl std::ops::DerefMut for $outer {
            fn deref_mut(&mut self) -> &mut $inner {
                &mut self.0
            }
        }
    };
}

pub(crate) use {dereference, drop_in};
