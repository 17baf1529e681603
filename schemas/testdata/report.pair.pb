
 7a1d5f0c93b24e68a0c1f2d3e4b5a697pairacme"1*photos2 0f1e2d3c4b5a69788796a5b4c3d2e1f0:Ú˜àÏÀŸ«Bá˜àÏ€¤èJ
emittedPb2