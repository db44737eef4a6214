"""Files for repositories that assay their own cache in CI."""
