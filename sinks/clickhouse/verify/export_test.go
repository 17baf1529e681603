package verify

// ComparedParts returns the parts that Manifest compares, by column of copy_state.
func ComparedParts() map[string][]string {
	parts := map[string][]string{}
	for _, g := range stateGroups() {
		parts[g.name] = g.parts
	}
	return parts
}

// WithMaxDiffer returns the ManifestConfig that stops after most different copies.
func (c ManifestConfig) WithMaxDiffer(most int) ManifestConfig {
	c.maxDiffer = most
	return c
}
