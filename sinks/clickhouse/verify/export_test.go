package verify

// ComparedParts returns the parts that CheckManifest compares, by column of copy_state.
func ComparedParts() map[string][]string {
	parts := map[string][]string{}
	for _, g := range stateGroups() {
		parts[g.name] = g.parts
	}
	return parts
}

// WithMaxDiffer returns the ManifestCheck that stops after most different copies.
func (c ManifestConfig) WithMaxDiffer(most int) ManifestConfig {
	c.maxDiffer = most
	return c
}
