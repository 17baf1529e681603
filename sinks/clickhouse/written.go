package clickhouse

// WrittenColumns returns the tables that sinks write to, and for each of them the type of every column that they
// write.
func WrittenColumns() map[string]map[string]string {
	tables := map[string]map[string]string{"copy_state": {}}
	for _, fs := range topicTables() {
		for _, f := range fs {
			tables[f.table] = f.types
		}
	}
	for _, c := range stateColumns() {
		tables["copy_state"][c.name] = c.typ
	}
	for _, table := range PositionTables() {
		for _, c := range positionColumns(table) {
			tables[table][c.name] = c.typ
		}
	}
	return tables
}
