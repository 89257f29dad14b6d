//! Weights of samples of uneven classes.

/// Weights with which every class is drawn equally often: 1 / the number of samples of the class.
///
/// For [`sample_weights`](collective::loader::ShardedLoaderBuilder::sample_weights).
pub fn class_weights(labels: impl IntoIterator<Item = usize>) -> Vec<f64> {
    let labels: Vec<usize> = labels.into_iter().collect();
    let mut counts = vec![0.0; labels.iter().max().map_or(0, |most| most + 1)];
    labels.iter().for_each(|label| counts[*label] += 1.0);
    labels.into_iter().map(|label| 1.0 / counts[label]).collect()
}

#[cfg(test)]
mod tests {
    use super::class_weights;

    #[test]
    fn every_class_has_the_same_weight() {
        assert_eq!(class_weights([0, 2, 2, 2, 2, 0]), [0.5, 0.25, 0.25, 0.25, 0.25, 0.5]);
        assert!(class_weights([]).is_empty());
    }
}
