
 98d433b67e8b6c016b4d012dc890b513acmephotos"2020/Ã©tÃ©/ 100% â˜‚.jpg*1228@J 0e2e2f0d1090acea4a674bab04c7ebe4PZö˜àÏÀ±Ÿb1777862521987000000-12345hr'
md5 304f6be33fc417b75a6e3991b70f672dxˆªbob²æ™àÏÀùï‚
rewrites-1’ 5d1ae0d7c4e5b1a9f0cc3d2a7b64e011