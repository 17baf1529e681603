
 7f0e2d0b1c0e4cc9a0a4a7d9d6a6f3b2acme":{"defaultPolicies":[{"srcStoreId":"1","destStoreId":"3"}]}2ann:moved from the old systemB‚ò‡œ¿®•RimportZs3://archive/policies