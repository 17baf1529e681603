
 f1a2c86f6f2b4aa0a13ad02f8b39b7d2acmephotos"2020/film.mov*1228@J 7b1dd1a5f3a34b3d0c3f6dbeab3c0f11PZ†ô‡œ¿Ãçr'
md5 304f6be33fc417b75a6e3991b70f672dxàí'
md5 304f6be33fc417b75a6e3991b70f672d:†ô‡œ¿ÃçZvideo/quicktimehxÇ-
v1'
md5 5d41402abc4b2a76b9719d911017c592≤Êô‡œ¿˘Ô