
 3b9d1e0f7a6c4528b1d2c3e4f5a60718acmephotos"2020/film.mov*2228@J 47dc22e01999939fcc48e92ec97d1f54¢∫
.acme/2/photos/2020%2Ffilm.mov/metadata-damaged'
md5 ba0db2dea5ea1f1c759bbfa157cfd9649
1777862521987000000-12345ßô‡œÄ—  ìÄÄÄÄ (ç†›‡∞ä˝Åf" 9e2d7b6c5a4f40318f7e6d5c4b3a2918(0≤ßô‡œÄ— 