
 52b1c0d4e9b34a2c88a0b7fd4d3a6f10acme":{"defaultPolicies":[{"srcStoreId":"1","destStoreId":"2"}]}2policiesB·ò‡œÄ§ËJ@9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08