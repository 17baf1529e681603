
 ab3832d631eb7a583918cda2a9e4a119acmeƒ€€€€ ":{"defaultPolicies":[{"srcStoreId":"1","destStoreId":"2"}]}(2ann:	asked forBá˜àÏ€¤è